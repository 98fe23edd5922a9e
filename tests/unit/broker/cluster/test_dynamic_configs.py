"""``DynamicConfigs``: precedence of values, and notification of subscribers."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs, DynamicValue
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.config import BrokerConfig, DynamicBrokerConfig
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.metadata.records import ResourceType

RATE = "leader.replication.throttled.rate"


class Rig:
    def __init__(self) -> None:
        config = BrokerConfig.from_properties(
            {
                "process.roles": "broker",
                "node.id": "7",
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "controller.quorum.voters": "100@127.0.0.1:9093",
                RATE: "1000",
            },
            source="test",
            base_dir="/",
        )
        self.cache = MetadataCache(cluster_id="c")
        self.dynamic = DynamicConfigs(config=config, cache=self.cache)
        self.received: list[DynamicBrokerConfig] = []
        self.dynamic.subscribe(self.received.append)

    def set(self, name: str, **values: str) -> None:
        key = (ResourceType.BROKER, name)
        self.cache.state.configs[key] = {k.replace("_", "."): v for k, v in values.items()}
        self.dynamic.refresh()

    @property
    def rate(self) -> int:
        return self.received[-1].leader_replication_throttled_rate


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_new_config_subscriber_receives_static_values_immediately(rig: Rig) -> None:
    assert (len(rig.received), rig.rate) == (1, 1000)
    assert rig.received[0].follower_replication_throttled_rate == MAX_LONG


def test_dynamic_value_of_the_broker_overrides_cluster_wide_and_static_values(rig: Rig) -> None:
    rig.set("", leader_replication_throttled_rate="5")
    assert rig.rate == 5
    rig.set("7", leader_replication_throttled_rate="6")
    assert rig.rate == 6
    assert list(rig.dynamic.values_of(RATE)) == [DynamicValue("6", True), DynamicValue("5", False)]
    rig.set("7")
    rig.set("")
    assert rig.rate == 1000


def test_dynamic_value_of_another_broker_notifies_no_subscriber(rig: Rig) -> None:
    rig.set("8", leader_replication_throttled_rate="6")
    assert len(rig.received) == 1


def test_dynamic_config_keys_are_independent(rig: Rig) -> None:
    rig.set("", replica_alter_log_dirs_io_max_bytes_per_second="9")
    assert rig.received[-1].replica_alter_log_dirs_io_max_bytes_per_second == 9
    assert rig.rate == 1000


def test_invalid_dynamic_value_is_logged_and_the_next_source_applies(rig: Rig) -> None:
    rig.set("", leader_replication_throttled_rate="5")
    with capture_logs() as logged:
        rig.set("7", leader_replication_throttled_rate="soon")
    assert rig.rate == 5
    assert [(line["event"], line["key"]) for line in logged] == [("dynamic_config_unusable", RATE)]


def test_dynamic_config_change_is_logged(rig: Rig) -> None:
    with capture_logs() as logged:
        rig.set("", leader_replication_throttled_rate="5")
    assert logged[-1]["event"] == "dynamic_config_changed"
    assert logged[-1]["values"] == {RATE: "5"}


def test_listener_subscriber_receives_usable_values_by_key(rig: Rig) -> None:
    received: list[dict[str, str]] = []
    rig.dynamic.subscribe_listeners(lambda _, values: received.append(dict(values)))
    limit, store = "listener.name.outer.max.connections", "listener.name.outer.ssl.keystore.type"
    configs = rig.cache.state.configs
    configs[ResourceType.BROKER, ""] = {limit: "5"}
    configs[ResourceType.BROKER, "7"] = {limit: "many", store: "PEM"}
    with capture_logs() as logs:
        rig.dynamic.refresh()
    assert received == [{}, {limit: "5", store: "PEM"}]
    (unusable,) = [log for log in logs if log["event"] == "dynamic_config_unusable"]
    assert unusable["key"] == limit
    assert rig.dynamic.listener_keys() == [limit, store]
    del configs[ResourceType.BROKER, "7"]
    rig.dynamic.refresh()
    assert received[-1] == {limit: "5"}
    assert len(rig.received) == 1, "other subscribers are not concerned"
