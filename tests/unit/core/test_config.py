"""``BrokerConfig`` and ``ControllerConfig``."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import (
    DYNAMIC_BROKER_KEYS,
    BrokerConfig,
    ControllerConfig,
    DynamicBrokerConfig,
)
from kraftjbod.core.config_model import unknown_keys
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.node_config import Endpoint

BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "log.dirs": "d0, /mnt/d1/../d1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.quorum.voters": "100@127.0.0.1:9093",
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "100",
    "log.dirs": "/meta",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": "100@127.0.0.1:9093",
}


def broker(**more: str) -> BrokerConfig:
    values = BROKER | {key.replace("_", "."): value for key, value in more.items()}
    return BrokerConfig.from_properties(values, source="b.properties", base_dir="/srv")


def controller(**more: str) -> ControllerConfig:
    values = CONTROLLER | {key.replace("_", "."): value for key, value in more.items()}
    return ControllerConfig.from_properties(values, source="c.properties", base_dir="/srv")


def test_inter_broker_listener_is_configured_plaintext_or_first_one() -> None:
    both = "OUTER://:9092,PLAINTEXT://:9093,INNER://:9094"
    assert broker(listeners=both).inter_broker_listener == "PLAINTEXT"
    assert broker(listeners="OUTER://:9092,INNER://:9094").inter_broker_listener == "OUTER"
    name = {"inter_broker_listener_name": "INNER"}
    assert broker(listeners=both, **name).inter_broker_listener == "INNER"
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name is INNER"):
        broker(listeners="PLAINTEXT://:9093", **name)


def test_cordoned_dirs_are_normalized_and_star_means_all() -> None:
    """Any spelling of the path is accepted (KAFKA-20901)."""
    assert broker().cordoned_dirs == ()
    assert broker(cordoned_log_dirs="./d0/").cordoned_dirs == ("/srv/d0",)
    assert broker(cordoned_log_dirs="*").cordoned_dirs == ("/srv/d0", "/mnt/d1")


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", ()),
        ("d0, ./d0/,/srv//d0", ("/srv/d0",)),
        ("//mnt/d1,*", ("/mnt/d1", "*")),
    ],
)
def test_absolute_dirs_normalizes_paths_and_leaves_a_star(
    text: str, paths: tuple[str, ...]
) -> None:
    assert broker().absolute_dirs(text) == paths


@pytest.mark.parametrize(
    ("cordoned", "why"),
    [
        ("/x,d0", r"must be present in log\.dirs or log\.dir\. Missing entries : /x$"),
        ("*,d0", r"set to \*, it must not contain other values"),
    ],
)
def test_cordoned_log_dirs_reject_unknown_paths_and_mixed_star(cordoned: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        broker(cordoned_log_dirs=cordoned)


def test_replica_telemetry_interval_must_not_be_below_directory_interval() -> None:
    with pytest.raises(ConfigError, match=r"must not be less than storage\.telemetry\.log\.dir\."):
        broker(storage_telemetry_replica_interval_ms="9999")


def test_telemetry_topic_requires_finite_retention() -> None:
    for key in ("storage_telemetry_topic_retention_ms", "storage_telemetry_topic_retention_bytes"):
        with pytest.raises(ConfigError, match=key.replace("_", ".")):
            broker(**{key: "-1"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_id": "-1"}, "node.id"),
        ({"listeners": "9092"}, "NAME://host:port"),
        ({"controller_quorum_voters": "here:1"}, "id@host:port"),
        ({"controller_quorum_voters": ""}, "names no controller"),
        ({"process_roles": "broker,controller"}, "not both"),
        ({"process_roles": "controller"}, "must be broker"),
        ({"log_dirs": "a,./a"}, "names a directory twice"),
        ({"log_dirs": "b,a,./b/c"}, "names /srv/b/c, which is below /srv/b"),
        ({"broker_heartbeat_interval_ms": "5000"}, "at least twice"),
        ({"replica_fetch_wait_max_ms": "40000"}, "replica.lag.time.max.ms"),
        ({"log_dir_io_suspect_ms": "31000"}, "log.dir.io.timeout.ms"),
        ({"log_segment_bytes": "many"}, "log.segment.bytes"),
        ({"queued_max_request_bytes": "99000000"}, "less than socket.request.max.bytes"),
        ({"max_connections_per_ip_overrides": "10.0.0.1"}, "is no limit of an address"),
        ({"max_connections_per_ip_overrides": "host:5"}, "'host:5' is no limit of an address"),
    ],
)
def test_invalid_broker_config_raises_error_with_rule_and_file(
    change: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        broker(**change)
    assert "b.properties" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_id": "7"}, "not in controller.quorum.voters"),
        ({"process_roles": "broker"}, "must be controller"),
        ({"controller_quorum_voters": "100@a:1,100@b:1"}, "names a node twice"),
        ({"cluster_action_allowed_hosts": "broker-1:9092"}, "'broker-1:9092' is no address"),
        ({"cluster_action_allowed_hosts": " "}, "names no host; remove it"),
    ],
)
def test_invalid_controller_config_raises_error_with_rule(
    change: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        controller(**change)


def test_allowed_hosts_are_parsed_by_broker_and_controller() -> None:
    for make in (controller, broker):
        hosts = make(
            cluster_action_allowed_hosts="127.0.0.1, 10.1.2.3/16,::1,Broker-1"
        ).allowed_hosts
        assert hosts is not None
        assert list(map(str, hosts.networks)) == ["127.0.0.1/32", "10.1.0.0/16", "::1/128"]
        assert hosts.names == ("broker-1",)
        assert make().allowed_hosts is None


def test_wildcard_listener_is_advertised_as_loopback() -> None:
    assert broker(listeners="PLAINTEXT://:9092").advertised == (
        Endpoint("PLAINTEXT", "127.0.0.1", 9092),
    )


@pytest.mark.parametrize("host", ["[::]", "[0:0::0]"])
def test_ipv6_wildcard_listener_is_advertised_as_ipv6_loopback(host: str) -> None:
    """A listener on ``[::]`` accepts no IPv4 connections."""
    assert broker(listeners=f"PLAINTEXT://{host}:9092").advertised == (
        Endpoint("PLAINTEXT", "::1", 9092),
    )
    config = controller(
        listeners=f"CONTROLLER://{host}:9093",
        controller_quorum_voters="",
        controller_quorum_bootstrap_servers="[::1]:9093",
    )
    assert config.advertised_endpoint == Endpoint("CONTROLLER", "::1", 9093)


def test_ipv6_addresses_are_advertised_as_they_are() -> None:
    assert broker(listeners="PLAINTEXT://[::1]:9092").advertised[0].host == "::1"
    said = broker(
        listeners="PLAINTEXT://[::]:9092", advertised_listeners="PLAINTEXT://[2001:db8::1]:9092"
    )
    assert said.advertised == (Endpoint("PLAINTEXT", "2001:db8::1", 9092),)
    assert said.advertised[0].text == "PLAINTEXT://[2001:db8::1]:9092"


def test_controller_without_its_listener_is_refused() -> None:
    assert controller().endpoint.port == 9093
    with pytest.raises(ConfigError, match=r"controller\.listener\.names"):
        _ = controller(listeners="PLAINTEXT://127.0.0.1:9092").endpoint


def test_unknown_keys_are_listed() -> None:
    assert unknown_keys(BrokerConfig, BROKER | {"log.dirz": "x"}) == ["log.dirz"]


def test_dynamic_broker_config_parses_changeable_keys() -> None:
    rate = "leader.replication.throttled.rate"
    dynamic = DynamicBrokerConfig.from_values({rate: "7"}, source="broker 1")
    assert dynamic.leader_replication_throttled_rate == 7
    assert dynamic.model_fields_set == {"leader_replication_throttled_rate"}
    assert rate in DYNAMIC_BROKER_KEYS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"log.dirs": "/x"}, "broker 1: log.dirs cannot change while a broker runs"),
        ({"leader.replication.throttled.rate": "0"}, "leader.replication.throttled.rate"),
    ],
)
def test_dynamic_broker_config_rejects_static_keys_and_invalid_values(
    values: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DynamicBrokerConfig.from_values(values, source="broker 1")


def test_topic_defaults_are_those_of_the_broker_config() -> None:
    config = broker(log_retention_hours="1", log_roll_ms="5", message_max_bytes="2000")
    defaults = config.topic_defaults()
    assert (defaults.retention_ms, defaults.segment_ms) == (3_600_000, 5)
    assert defaults.max_message_bytes == 2000
    assert broker(log_retention_hours="-1").topic_defaults().retention_ms == -1
    assert broker(log_retention_ms="9").topic_defaults().retention_ms == 9


def test_log_retention_prefers_ms_over_minutes_over_hours() -> None:
    assert broker(log_retention_minutes="2").topic_defaults().retention_ms == 120_000
    both = broker(log_retention_minutes="2", log_retention_hours="1")
    assert both.topic_defaults().retention_ms == 120_000
    finest = broker(log_retention_minutes="2", log_retention_ms="9")
    assert finest.topic_defaults().retention_ms == 9
    for key in ("log_retention_ms", "log_retention_minutes", "log_retention_hours"):
        assert broker(**{key: "-7"}).topic_defaults().retention_ms == -1
        with pytest.raises(ConfigError, match="0 would keep no record"):
            broker(**{key: "0"})


def test_config_accepts_key_names_of_kip_113_and_refuses_policy_classes() -> None:
    config = broker(intra_broker_throttled_rate="7", num_replica_move_threads="3")
    assert config.replica_alter_log_dirs_io_max_bytes_per_second == 7
    assert config.num_replica_alter_log_dirs_threads == 3
    with pytest.raises(ConfigError, match=r"create\.topic\.policy.class.name is x.Policy"):
        broker(create_topic_policy_class_name="x.Policy")
    with pytest.raises(ConfigError, match=r"alter\.config\.policy.class.name is x.Policy"):
        controller(alter_config_policy_class_name="x.Policy")
