"""``ConfigurationControlManager``; tests/golden/configs.txt has more scenarios."""

from __future__ import annotations

import pytest

from kraftjbod.controller.configuration_control import ConfigurationControlManager
from kraftjbod.controller.quorum.controller_settings import SettingsInForce
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, TopicId
from kraftjbod.core.metadata_version import DEFAULT_METADATA_VERSION, MetadataVersion
from kraftjbod.metadata.records import ConfigRecord, FeatureLevelRecord, ResourceType, TopicRecord
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol import rpc_config_messages as m

UNCLEAN = "unclean.leader.election.enable"


def _manager(state: MetadataState, *, unclean: bool = False) -> ConfigurationControlManager:
    settings = SettingsInForce(DynamicControllerConfig(unclean_leader_election_enable=unclean))
    return ConfigurationControlManager(state=state, settings=settings)


def test_new_topic_records_only_given_values() -> None:
    records = _manager(MetadataState()).new_topic("t", {"retention.ms": "5", "flush.ms": None})
    assert [(r.resource_name, r.name, r.value) for r in records] == [("t", "retention.ms", "5")]


@pytest.mark.parametrize("configs", [{"nope": "1"}, {"retention.ms": "x"}])
def test_new_topic_refuses_unknown_keys_and_invalid_values(configs: dict[str, str]) -> None:
    with pytest.raises(OperatingError, match=next(iter(configs))) as refused:
        _manager(MetadataState()).new_topic("t", configs)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def _configured(name: str, **values: str) -> MetadataState:
    """Return state with values that earlier versions accepted."""
    state = MetadataState()
    (topic,) = [TopicRecord(name=name, topic_id=TopicId(bytes(15) + b"1"))]
    records = [
        ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name=name,
            name=key.replace("_", "."),
            value=v,
        )
        for key, v in values.items()
    ]
    state.replay([topic, *records], offset=0, epoch=0, delta=MetadataDelta())
    return state


def test_rules_of_topic_with_invalid_stored_values_use_nearest_bounds() -> None:
    """A controller that raised an error for them would decide nothing at all."""
    stored = {UNCLEAN.replace(".", "_"): "yes", "min_insync_replicas": "9" * 11, "newer_key": "1"}
    rules = _manager(_configured("t", **stored)).rules_of("t")
    assert (rules.may_elect_unclean, rules.min_isr) == (True, 2**31 - 1)


def test_alter_of_topic_replaces_stored_values_that_are_refused_now() -> None:
    manager = _manager(_configured("t", retention_ms="9" * 20))
    change = m.ConfigChange(name="segment.bytes", operation=0, value="4096")
    resource = m.AlteredResource(resource_type=2, name="t", changes=(change,))
    altered = manager.incremental_alter(m.IncrementalAlterConfigsRequestRpc(resources=(resource,)))
    assert {r.name: r.value for r in altered.records if isinstance(r, ConfigRecord)} == {
        "retention.ms": str(2**63 - 1),
        "segment.bytes": "4096",
    }


def test_alter_accepts_key_names_of_kip_113() -> None:
    change = m.ConfigChange(name="intra.broker.throttled.rate", operation=0, value="7")
    resource = m.AlteredResource(resource_type=4, name="", changes=(change,))
    request = m.IncrementalAlterConfigsRequestRpc(resources=(resource,))
    (record,) = _manager(MetadataState()).incremental_alter(request).records
    assert isinstance(record, ConfigRecord)
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert (record.name, record.value) == (key, "7")


def test_rules_of_topic_prefer_its_value_over_the_default() -> None:
    state = MetadataState()
    records = _manager(state).new_topic("t", {UNCLEAN: "true"})
    state.replay(records, offset=0, epoch=0, delta=MetadataDelta())
    assert _manager(state).rules_of("t").may_elect_unclean
    assert not _manager(state).rules_of("other").may_elect_unclean
    assert _manager(state, unclean=True).rules_of("other").may_elect_unclean


def _alter(
    manager: ConfigurationControlManager, *resources: m.AlteredResource
) -> list[tuple[ErrorCode, str | None]]:
    result = manager.incremental_alter(m.IncrementalAlterConfigsRequestRpc(resources=resources))
    assert not result.records
    return [(item.error_code, item.error_message) for item in result.response.resources]


def test_alter_refuses_resource_named_twice() -> None:
    rate = m.ConfigChange(name="leader.replication.throttled.rate", operation=0, value="1")
    twice = m.AlteredResource(resource_type=4, name="", changes=(rate,))
    outcomes = _alter(_manager(MetadataState()), twice, twice)
    assert [code for code, _ in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    assert all("named twice" in (message or "") for _, message in outcomes)


@pytest.mark.parametrize(
    ("resource_type", "named"),
    [(2, "topic 'x'"), (4, "broker 'x'"), (32, "group 'x'"), (16, "resource 'x' of type 16")],
)
def test_duplicate_resource_error_names_type_of_resource(resource_type: int, named: str) -> None:
    change = m.ConfigChange(name="k", operation=0, value="1")
    twice = m.AlteredResource(resource_type=resource_type, name="x", changes=(change,))
    for _, message in _alter(_manager(MetadataState()), twice, twice):
        assert message == f"{named} is named twice; put all its changes together."


def test_alter_refuses_broker_name_that_is_no_number() -> None:
    rate = m.ConfigChange(name="leader.replication.throttled.rate", operation=0, value="1")
    names = ("x", "-1", "1.0", "\u0661", "9" * 5_000)
    resources = (m.AlteredResource(resource_type=4, name=n, changes=(rate,)) for n in names)
    outcomes = _alter(_manager(MetadataState()), *resources)
    assert {code for code, _ in outcomes} == {ErrorCode.INVALID_REQUEST}


def test_alter_of_group_requires_group_version() -> None:
    """The group need not exist."""
    state = MetadataState()
    session = m.ConfigChange(name="consumer.session.timeout.ms", operation=0, value="50000")
    group, unnamed = (
        m.AlteredResource(resource_type=32, name=name, changes=(session,)) for name in ("g", "")
    )
    codes = [code for code, _ in _alter(_manager(state), group, unnamed)]
    assert codes == [ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST]
    level = FeatureLevelRecord(name="group.version", feature_level=1)
    state.replay([level], offset=0, epoch=0, delta=MetadataDelta())
    request = m.IncrementalAlterConfigsRequestRpc(resources=(group,))
    result = _manager(state).incremental_alter(request)
    assert [(r.resource_name, r.value) for r in result.records] == [("g", "50000")]  # type: ignore[union-attr]  # config records
    state.replay(result.records, offset=1, epoch=0, delta=MetadataDelta())
    unset = session.model_copy(update={"operation": 1, "value": None})
    request = m.IncrementalAlterConfigsRequestRpc(
        resources=(group.model_copy(update={"changes": (unset,)}),)
    )
    state.replay(
        _manager(state).incremental_alter(request).records,
        offset=2,
        epoch=0,
        delta=MetadataDelta(),
    )
    assert not state.configs


def test_alter_refuses_value_longer_than_old_records_allow() -> None:
    long = m.ConfigChange(name="cordoned.log.dirs", operation=0, value="/d," * 11_000)
    resource = m.AlteredResource(resource_type=4, name="", changes=(long,))
    ((code, message),) = _alter(_manager(MetadataState()), resource)
    assert code == ErrorCode.INVALID_CONFIG
    assert "32767 bytes" in (message or "")


def test_cordon_of_a_removed_broker_with_stored_values_is_refused() -> None:
    """An unregistered broker has stored values, but no directories to cordon."""
    state = MetadataState()
    level = FeatureLevelRecord(
        name="metadata.version", feature_level=DEFAULT_METADATA_VERSION.value
    )
    stored = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="2", name="cordoned.log.dirs", value="/d0"
    )
    state.replay([level, stored], offset=0, epoch=0, delta=MetadataDelta())
    for operation, value in ((2, "/d1"), (0, "/d0,/d1")):  # APPEND and SET
        change = m.ConfigChange(name="cordoned.log.dirs", operation=operation, value=value)
        resource = m.AlteredResource(resource_type=4, name="2", changes=(change,))
        ((code, message),) = _alter(_manager(state), resource)
        assert (code, "subset" in (message or "")) == (ErrorCode.INVALID_CONFIG, True)


def test_key_store_of_listener_is_set_only_by_the_broker_that_checked_it() -> None:
    state = MetadataState()
    level = FeatureLevelRecord(
        name="metadata.version", feature_level=MetadataVersion.IV_4_4_IV2_J1.value
    )
    store = "listener.name.outer.ssl.keystore.location"
    stored = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="2", name=store, value="/old"
    )
    state.replay([level, stored], offset=0, epoch=0, delta=MetadataDelta())

    def outcome(name: str, validated_by: int | None, **values: str | None) -> str:
        changes = tuple(
            m.ConfigChange(
                name=f"listener.name.outer.{key.replace('_', '.')}",
                operation=1 if value is None else 0,
                value=value,
            )
            for key, value in values.items()
        )
        request = m.IncrementalAlterConfigsRequestRpc(
            resources=(m.AlteredResource(resource_type=4, name=name, changes=changes),),
            validated_by=None if validated_by is None else BrokerId(validated_by),
        )
        (item,) = _manager(state).incremental_alter(request).response.resources
        return item.error_message or ""

    assert outcome("2", 2, ssl_keystore_location="/new") == ""
    for other in (None, 1):
        refused = outcome("2", other, ssl_keystore_location="/new")
        assert "can be set only while broker 2 runs" in refused
        assert outcome("2", other, ssl_keystore_location=None) == ""
        assert outcome("2", other, max_connections="5") == ""
    assert "per-broker configs must be used" in outcome("", 2, ssl_keystore_location="/new")
    assert "this secret in plain text" in outcome("2", 2, ssl_keystore_password="canary")
    assert outcome("", None, max_connections="5") == ""


def test_listener_values_below_their_metadata_version_are_refused() -> None:
    change = m.ConfigChange(name="listener.name.outer.max.connections", operation=0, value="5")
    resource = m.AlteredResource(resource_type=4, name="", changes=(change,))
    state = MetadataState()
    level = FeatureLevelRecord(
        name="metadata.version", feature_level=MetadataVersion.IV_4_4_IV2.value
    )
    state.replay([level], offset=0, epoch=0, delta=MetadataDelta())
    ((code, message),) = _alter(_manager(state), resource)
    assert code == ErrorCode.INVALID_CONFIG
    assert "requires metadata.version >= 4.4-IV2-J1" in (message or "")
