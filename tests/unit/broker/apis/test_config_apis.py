"""DescribeConfigs (values, sources, synonyms), IncrementalAlterConfigs and AlterConfigs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kraftjbod.broker.apis.config_apis import ConfigApis
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.broker.cluster.group_configs import GroupConfigs
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.config_model import MAX_LONG, ConfigType, config_types
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import MIGRATING_DIR, BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from kraftjbod.core.topic_config import CleanupPolicy
from kraftjbod.daemon.wiring.broker_wiring import refuse_stores
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.metadata.registrations import PartitionRegistration, TopicRegistration
from kraftjbod.protocol.kafka_codec import (
    ApiKey,
    RequestHeader,
    decode_response,
    encode_response,
    message,
)
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    DescribedResource,
    DescribeDynamicConfigsRequest,
    DescribeDynamicConfigsResponse,
    IncrementalAlterConfigsRequestRpc,
    IncrementalAlterConfigsResponseRpc,
    ResourceOutcome,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from tests.unit.broker.broker_rig import CONNECTION, accept, brokers, dir_of
from tests.unit.broker.scripted_controller import RealClock

ALTER = message("IncrementalAlterConfigsRequest")
REQUEST = message("DescribeConfigsRequest")
CONTEXT = RequestContext(connection=CONNECTION, api_version=4, client_id=None)
TOPIC, DYNAMIC, STATIC, DEFAULT = int(ResourceType.TOPIC), 1, 4, 5
BROKER, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER = int(ResourceType.BROKER), 2, 3
GROUP, GROUP_CONFIG = int(ResourceType.GROUP), 8
RATE = "leader.replication.throttled.rate"
OTHER_RATE = "follower.replication.throttled.rate"


@pytest.fixture
def cache() -> MetadataCache:
    cache = MetadataCache(cluster_id="c")
    cache.state.topic_ids["t"] = TopicId(b"t" * 16)
    cache.state.configs[(ResourceType.TOPIC, "t")] = {
        "segment.bytes": "4096",
        "leader.replication.throttled.replicas": "1:2,0:7",
    }
    cache.state.configs[(ResourceType.BROKER, "")] = {RATE: "5", OTHER_RATE: "8"}
    cache.state.configs[(ResourceType.BROKER, "7")] = {RATE: "6"}
    return cache


@pytest.fixture
def apis(cache: MetadataCache) -> ConfigApis:
    config = BrokerConfig.from_properties(
        {
            "process.roles": "broker",
            "node.id": "7",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "controller.quorum.voters": "100@127.0.0.1:9093",
            "log.retention.hours": "2",
            "ssl.key.password": "canary",
            RATE: "7",
        },
        source="test",
        base_dir="/",
    )
    dynamic_configs = DynamicConfigs(config=config, cache=cache)
    dynamic_configs.refresh()
    return ConfigApis(
        config=config,
        cache=cache,
        group_configs=GroupConfigs(cache=cache, config=config),
        topic_configs=TopicConfigs(defaults=config.topic_defaults(), cache=cache),
        dynamic_configs=dynamic_configs,
        channel=ControllerChannel(
            addresses=config.controller_addresses, clock=RealClock(), random_unit=lambda: 0.5
        ),
        own_dirs=tuple,
        check_listeners=refuse_stores,
    )


async def described(
    apis: ConfigApis, resource_type: int, name: str, keys: list[str] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the result of the resource, and its entries by name."""
    resource = REQUEST.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    request = REQUEST(resources=[resource], include_synonyms=True)
    (result,) = await answered(apis, request)
    return result, {entry.name: entry for entry in result.configs}


async def answered(apis: ConfigApis, request: Any) -> list[Any]:
    """Return the results after a round trip through the wire format."""
    header = RequestHeader(ApiKey.DESCRIBE_CONFIGS, CONTEXT.api_version, 1, None)
    frame = b"".join(encode_response(header, await apis.describe_configs(request, CONTEXT)))
    answer = decode_response(frame[4:], api_key=header.api_key, version=header.api_version)
    results: list[Any] = answer.results
    return results


def synonyms_of(entry: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


async def test_describe_configs_topic_value_overrides_default_with_synonyms(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, TOPIC, "t")
    entry = entries["segment.bytes"]
    assert (entry.value, entry.config_source) == ("4096", DYNAMIC)
    assert synonyms_of(entry) == [
        ("segment.bytes", "4096", DYNAMIC),
        ("log.segment.bytes", str(1024**3), DEFAULT),
    ]


async def test_describe_configs_topic_inherits_static_broker_value(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t")
    entry = entries["retention.ms"]
    assert (entry.value, entry.config_source) == (str(2 * 3_600_000), STATIC)
    assert synonyms_of(entry) == [
        ("log.retention.hours", "2", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


async def test_describe_configs_password_is_sensitive_and_null(apis: ConfigApis) -> None:
    _, entries = await described(apis, ResourceType.BROKER, "7")
    password = entries["ssl.key.password"]
    assert (password.is_sensitive, password.value, password.config_type) == (True, None, 9)
    assert [synonym.value for synonym in password.synonyms] == [None]
    kinds = config_types(BrokerConfig)
    sensitive = {key for key, entry in entries.items() if entry.is_sensitive}
    assert sensitive == {key for key, kind in kinds.items() if kind is ConfigType.PASSWORD}
    assert "canary" not in repr(entries)


async def test_describe_configs_listener_values_have_types_and_no_secret(
    apis: ConfigApis, cache: MetadataCache
) -> None:
    prefix = "listener.name.outer."
    password, limit = f"{prefix}ssl.keystore.password", f"{prefix}max.connections"
    cache.state.configs[ResourceType.BROKER, "7"] = {password: "${cred:canary}", limit: "5"}
    cache.state.configs[ResourceType.BROKER, ""] = {limit: "6"}
    _, entries = await described(apis, ResourceType.BROKER, "7")
    secret, count = entries[password], entries[limit]
    assert (secret.value, secret.is_sensitive, secret.config_source) == (None, True, DYNAMIC_BROKER)
    assert (count.value, count.config_type, count.read_only) == ("5", 3, False)
    assert synonyms_of(count) == [
        (limit, "5", DYNAMIC_BROKER),
        (limit, "6", DYNAMIC_DEFAULT_BROKER),
    ]
    _, of_all = await described(apis, ResourceType.BROKER, "")
    assert (of_all[limit].value, of_all[limit].config_type) == ("6", 3)


async def test_alter_configs_key_store_is_checked_before_it_is_forwarded() -> None:
    store, limit = "listener.name.plaintext.ssl.keystore.type", "listener.name.x.max.connections"
    async with brokers(answer=agree) as (rig,):
        for changes in ([change(store, "PEM")], [change(limit, "5"), change(store, "PEM")]):
            (answer_,) = (
                await rig.ask(ALTER(resources=[altered(BROKER, "1", *changes)]))
            ).responses
            assert answer_.error_code == ErrorCode.INVALID_CONFIG
            assert answer_.error_message == "this broker has no listeners"
        assert rig.controller.seen == []
        twice = altered(BROKER, "1", change(store, "PEM"))
        answers = (await rig.ask(ALTER(resources=[twice, twice]))).responses
        assert {item.error_code for item in answers} == {ErrorCode.INVALID_REQUEST}
        alteration = ALTER(resources=[altered(BROKER, "1", change(limit, "5"))])
        (answer_,) = (await rig.ask(alteration)).responses
        assert answer_.error_code == ErrorCode.NONE


async def test_describe_configs_unset_topic_key_has_default_source(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t")
    assert entries["min.insync.replicas"].config_source == DEFAULT
    assert entries["compression.type"].value == "producer"


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        (None, None, ("1", DEFAULT)),
        (None, "3", ("3", DYNAMIC_DEFAULT_BROKER)),
        ("2", "3", ("2", DYNAMIC)),
    ],
)
async def test_describe_configs_min_insync_replicas_comes_from_topic_cluster_or_replication_factor(
    apis: ConfigApis,
    cache: MetadataCache,
    own: str | None,
    of_all: str | None,
    expected: tuple[str, int],
) -> None:
    """The default is 2, but never more than the replication factor of the topic."""
    state, topic_id = cache.state, TopicId(b"t" * 16)
    alone = PartitionRegistration(
        replicas=(BrokerId(7),),
        directories=(MIGRATING_DIR,),
        isr=(BrokerId(7),),
        leader=BrokerId(7),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_recovering=False,
    )
    state.topics[topic_id] = TopicRegistration(name="t", topic_id=topic_id, partitions={0: alone})
    key = "min.insync.replicas"
    if own is not None:
        state.configs[(ResourceType.TOPIC, "t")][key] = own
    if of_all is not None:
        state.configs[(ResourceType.BROKER, "")][key] = of_all
    _, entries = await described(apis, TOPIC, "t", [key])
    assert (entries[key].value, entries[key].config_source) == expected
    assert synonyms_of(entries[key])[-1] == (key, "2", DEFAULT)


async def test_describe_configs_with_keys_returns_only_those_keys(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t", ["retention.ms"])
    assert list(entries) == ["retention.ms"]


async def test_describe_configs_broker_formats_values_as_kafka(apis: ConfigApis) -> None:
    _, entries = await described(apis, int(ResourceType.BROKER), "7")
    assert entries["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert entries["controller.quorum.voters"].value == "100@127.0.0.1:9093"
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["log.retention.hours"].read_only
    assert entries["log.retention.hours"].config_source == STATIC
    # The controller chooses the value for new topics that the broker's file does not set.
    assert entries["num.partitions"].value is None
    assert entries["default.replication.factor"].value is None


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        pytest.param(TOPIC, "absent", 3, id="unknown topic"),
        pytest.param(int(ResourceType.BROKER), "8", 42, id="another broker"),
        pytest.param(16, "x", 42, id="unknown type of resource"),
    ],
)
async def test_describe_configs_unknown_resource_returns_error_code_and_message(
    apis: ConfigApis, resource_type: int, name: str, code: int
) -> None:
    result, entries = await described(apis, resource_type, name)
    assert (result.error_code, entries) == (code, {})
    assert result.error_message


# --- dynamic values ------------------------------------------------------------------------------


async def test_describe_configs_broker_dynamic_value_overrides_with_all_synonyms(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, BROKER, "7")
    entry = entries[RATE]
    assert (entry.value, entry.config_source, entry.read_only) == ("6", DYNAMIC_BROKER, False)
    assert synonyms_of(entry) == [
        (RATE, "6", DYNAMIC_BROKER),
        (RATE, "5", DYNAMIC_DEFAULT_BROKER),
        (RATE, "7", STATIC),
        (RATE, str(MAX_LONG), DEFAULT),
    ]


async def test_describe_configs_broker_inherits_cluster_wide_dynamic_value(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, BROKER, "7")
    entry = entries[OTHER_RATE]
    assert (entry.value, entry.config_source) == ("8", DYNAMIC_DEFAULT_BROKER)


async def test_describe_configs_default_broker_lists_cluster_wide_dynamic_values(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, BROKER, "")
    assert {name: entry.value for name, entry in entries.items()} == {RATE: "5", OTHER_RATE: "8"}
    assert {entry.config_source for entry in entries.values()} == {DYNAMIC_DEFAULT_BROKER}


async def test_describe_configs_controller_keys_are_not_dynamic_for_a_broker(
    apis: ConfigApis, cache: MetadataCache
) -> None:
    timeout, unclean = "broker.session.timeout.ms", "unclean.leader.election.enable"
    of_all = cache.state.configs[ResourceType.BROKER, ""]
    of_all |= {timeout: "1234", unclean: "true"}
    _, entries = await described(apis, BROKER, "7")
    for key in (timeout, unclean):
        assert entries[key].read_only
        assert DYNAMIC_DEFAULT_BROKER not in [source for *_, source in synonyms_of(entries[key])]
    _, entries = await described(apis, BROKER, "")
    assert (entries[timeout].value, entries[unclean].value) == ("1234", "true")
    _, entries = await described(apis, TOPIC, "t")
    entry = entries[unclean]
    assert (entry.value, entry.config_source) == ("true", DYNAMIC_DEFAULT_BROKER)


async def test_describe_configs_throttled_replicas_are_sorted_and_typed_as_list(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, TOPIC, "t")
    entry = entries["leader.replication.throttled.replicas"]
    assert (entry.value, entry.config_type, entry.config_source) == ("0:7,1:2", 7, DYNAMIC)
    assert entries["follower.replication.throttled.replicas"].value == ""


async def test_describe_configs_returns_types_and_on_request_documentation(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, TOPIC, "t")
    assert (entries["retention.bytes"].value, entries["retention.bytes"].config_type) == ("-1", 5)
    assert entries["retention.bytes"].documentation is None, "the request did not ask for it"
    resource = REQUEST.DescribeConfigsResource(
        resource_type=BROKER, resource_name="7", configuration_keys=["log.dirs", "log.roll.ms"]
    )
    (result,) = await answered(apis, REQUEST(resources=[resource], include_documentation=True))
    dirs, roll = sorted(result.configs, key=lambda entry: str(entry.name))
    assert "failure domain" in dirs.documentation
    assert (dirs.config_type, roll.config_type, roll.value) == (7, 5, None)


async def test_describe_configs_group_value_overrides_broker_default(
    apis: ConfigApis, cache: MetadataCache
) -> None:
    session, beats = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    cache.state.configs[(ResourceType.GROUP, "g")] = {session: "60000"}
    result, entries = await described(apis, GROUP, "g")
    assert result.error_code == 0
    assert {name: entry.value for name, entry in entries.items()} == {
        **{session: "60000", beats: "5000", "consumer.assignment.interval.ms": "1000"}
    }
    assert synonyms_of(entries[session]) == [
        (session, "60000", GROUP_CONFIG),
        (f"group.{session}", "45000", DEFAULT),
    ]
    assert (entries[session].config_source, entries[beats].config_source) == (
        GROUP_CONFIG,
        DEFAULT,
    )
    nameless, _ = await described(apis, GROUP, "")
    assert nameless.error_code == ErrorCode.INVALID_REQUEST


async def test_describe_configs_compaction_keys_have_kafkas_synonyms_and_types(
    apis: ConfigApis,
) -> None:
    _, entries = await described(apis, TOPIC, "t")
    policy = entries["cleanup.policy"]
    assert (policy.value, policy.config_type) == ("delete", 7)
    assert synonyms_of(policy) == [("log.cleanup.policy", "delete", DEFAULT)]
    assert entries["min.cleanable.dirty.ratio"].value == "0.5"
    assert {
        key: ([name for name, _, _ in synonyms_of(entries[key])], entries[key].config_type)
        for key in (
            "min.cleanable.dirty.ratio",
            "delete.retention.ms",
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
        )
    } == {
        "min.cleanable.dirty.ratio": (["log.cleaner.min.cleanable.ratio"], 6),
        "delete.retention.ms": (["log.cleaner.delete.retention.ms"], 5),
        "min.compaction.lag.ms": (["log.cleaner.min.compaction.lag.ms"], 5),
        "max.compaction.lag.ms": (["log.cleaner.max.compaction.lag.ms"], 5),
    }
    assert str(CleanupPolicy.parse("delete,compact")) == "compact,delete"


# --- IncrementalAlterConfigs ---------------------------------------------------------------------


def change(name: str, value: str | None, operation: int = 0) -> Any:
    return ALTER.AlterableConfig(name=name, value=value, config_operation=operation)


def altered(resource_type: int, name: str, *changes: Any) -> Any:
    return ALTER.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=list(changes)
    )


def refuse_topics(request: RpcRequest) -> RpcResponse:
    if not isinstance(request, IncrementalAlterConfigsRequestRpc):
        return accept(request)
    return IncrementalAlterConfigsResponseRpc(
        resources=tuple(
            ResourceOutcome(
                resource_type=resource.resource_type,
                name=resource.name,
                error_code=ErrorCode(40 if resource.resource_type == TOPIC else 0),
                error_message="no" if resource.resource_type == TOPIC else None,
            )
            for resource in request.resources
        )
    )


async def test_alter_configs_forwards_changes_and_returns_outcomes_per_resource() -> None:
    async with brokers(answer=refuse_topics) as (rig,):
        request = ALTER(
            resources=[
                altered(TOPIC, "t", change("retention.ms", "5"), change("segment.ms", None, 1)),
                altered(BROKER, "", change(RATE, "9")),
            ],
            validate_only=True,
        )
        response = await rig.ask(request)
        assert rig.controller.seen == [
            IncrementalAlterConfigsRequestRpc(
                resources=(
                    AlteredResource(
                        resource_type=TOPIC,
                        name="t",
                        changes=(
                            ConfigChange(name="retention.ms", operation=0, value="5"),
                            ConfigChange(name="segment.ms", operation=1),
                        ),
                    ),
                    AlteredResource(
                        resource_type=BROKER,
                        name="",
                        changes=(ConfigChange(name=RATE, operation=0, value="9"),),
                    ),
                ),
                validate_only=True,
                validated_by=1,
            )
        ]
        answer_ = [(r.resource_name, r.error_code, r.error_message) for r in response.responses]
        assert answer_ == [("t", 40, "no"), ("", 0, None)]


async def test_alter_configs_with_unknown_operation_is_rejected_by_the_broker() -> None:
    async with brokers(answer=refuse_topics) as (rig,):
        response = await rig.ask(ALTER(resources=[altered(TOPIC, "t", change("a", "b", 7))]))
        (answer_,) = response.responses
        assert (answer_.resource_name, answer_.error_code) == ("t", ErrorCode.INVALID_REQUEST)
        assert "operation 7" in answer_.error_message


async def test_alter_configs_controller_error_applies_to_every_resource() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        raise OperatingError("ask later", code=ErrorCode.POLICY_VIOLATION)

    async with brokers(answer=refuse) as (rig,):
        resources = [altered(TOPIC, name) for name in ("a", "b")]
        response = await rig.ask(ALTER(resources=resources))
        answer_ = [(r.resource_name, r.error_code, r.error_message) for r in response.responses]
        assert answer_ == [("a", 44, "ask later"), ("b", 44, "ask later")]


# --- validation by the broker -----------------------------------------------------------------

CORDONS = "cordoned.log.dirs"


def cordon(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name=name, name=CORDONS, value=value
    )


async def test_describe_configs_cordoned_log_dirs_lists_every_source() -> None:
    async with brokers(cordoned_log_dirs="/d1") as (rig,):
        await rig.follow(cordon("", "*"), cordon("1", ""))
        resource = REQUEST.DescribeConfigsResource(
            resource_type=BROKER, resource_name="1", configuration_keys=[CORDONS]
        )
        answer = await rig.ask(REQUEST(resources=[resource], include_synonyms=True))
        (entry,) = answer.results[0].configs
        assert (entry.value, entry.config_source) == ("", DYNAMIC_BROKER)
        assert (entry.config_type, entry.read_only) == (7, False)
        assert synonyms_of(entry) == [
            (CORDONS, "", DYNAMIC_BROKER),
            (CORDONS, "*", DYNAMIC_DEFAULT_BROKER),
            (CORDONS, "/d1", STATIC),
            (CORDONS, "", DEFAULT),
        ]


def agree(request: RpcRequest) -> RpcResponse:
    if not isinstance(request, IncrementalAlterConfigsRequestRpc):
        return accept(request)
    return IncrementalAlterConfigsResponseRpc(
        resources=tuple(
            ResourceOutcome(resource_type=r.resource_type, name=r.name) for r in request.resources
        )
    )


async def test_alter_configs_cordoned_log_dirs_are_validated_by_the_broker() -> None:
    async with brokers(2, answer=agree, cordoned_log_dirs="/d2") as (rig, _):
        resources = [
            altered(BROKER, "1", change(CORDONS, "d1/", operation=2)),
            altered(BROKER, "", change(CORDONS, "/elsewhere")),
            altered(TOPIC, "t", change("retention.ms", "5")),
        ]
        response = await rig.ask(ALTER(resources=resources))
        (forwarded,) = rig.controller.seen
        assert forwarded.validated_by == 1
        assert [
            (r.name, [(c.value, c.operation, c.base) for c in r.changes])
            for r in forwarded.resources
        ] == [("1", [("/d1", 2, "/d2")]), ("t", [("5", 0, None)])]
        answer_ = {r.resource_name: (r.error_code, r.error_message) for r in response.responses}
        assert answer_ == {
            "1": (0, None),
            "t": (0, None),
            "": (
                42,
                "Invalid entry in cordoned.log.dirs: /elsewhere. "
                "All cordoned log dirs must be entries of log.dirs or log.dir.",
            ),
        }


async def test_alter_configs_cluster_wide_cordon_accepts_directories_of_other_brokers() -> None:
    async with brokers(answer=agree) as (rig,):
        other = dataclasses.replace(
            rig.registration(),
            broker_id=BrokerId(2),
            log_dirs=(dir_of(2, 1),),
            log_dir_paths=("/elsewhere",),
        )
        await rig.follow(other)
        response = await rig.ask(
            ALTER(resources=[altered(BROKER, "", change(CORDONS, "/elsewhere/,/d1"))])
        )
        assert [r.error_code for r in response.responses] == [0]


async def test_alter_configs_for_another_broker_is_rejected_unless_that_broker_is_fenced() -> None:
    async with brokers(2, answer=agree) as (rig, other):
        alteration = ALTER(resources=[altered(BROKER, "2", change(RATE, "5"))])
        (answer_,) = (await rig.ask(alteration)).responses
        assert answer_.error_code == ErrorCode.INVALID_REQUEST
        assert "expected 1 or an empty name, but received 2" in answer_.error_message
        assert rig.controller.seen == []
        await rig.follow(other.registration(fenced=True))
        (answer_,) = (await rig.ask(alteration)).responses
        assert answer_.error_code == ErrorCode.NONE
        assert [r.validated_by for r in rig.controller.seen] == [1]


async def test_describe_configs_repeated_resource_is_described_once(apis: ConfigApis) -> None:
    def asked(*keys: str) -> Any:
        return REQUEST.DescribeConfigsResource(
            resource_type=TOPIC, resource_name="t", configuration_keys=list(keys)
        )

    request = REQUEST(resources=[asked("retention.ms"), *[asked("segment.bytes")] * 10_000])
    (result,) = await answered(apis, request)
    assert {entry.name for entry in result.configs} == {"retention.ms", "segment.bytes"}


async def test_describe_configs_above_response_limit_rejects_remaining_resources(
    apis: ConfigApis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftjbod.broker.apis.config_apis.MAX_ANSWER_BYTES", 1_000)
    resources = [
        REQUEST.DescribeConfigsResource(resource_type=BROKER, resource_name=name)
        for name in ("7", "")
    ]
    first, second = await answered(apis, REQUEST(resources=resources))
    assert (first.error_code, second.error_code) == (0, ErrorCode.INVALID_REQUEST)
    assert "ask for this one again" in second.error_message


async def test_alter_configs_with_overlong_broker_id_returns_a_response() -> None:
    def pass_on(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, IncrementalAlterConfigsRequestRpc)
        return IncrementalAlterConfigsResponseRpc(
            resources=tuple(
                ResourceOutcome(resource_type=r.resource_type, name=r.name)
                for r in request.resources
            )
        )

    resource = ALTER.AlterConfigsResource(resource_type=BROKER, resource_name="9" * 5_000)
    async with brokers(answer=pass_on) as (rig,):
        response = await rig.ask(ALTER(resources=[resource]))
        assert len(response.responses) == 1


# --- AlterConfigs --------------------------------------------------------------------------------


def describe_committed(request: RpcRequest) -> RpcResponse:
    if not isinstance(request, DescribeDynamicConfigsRequest):
        return refuse_topics(request)
    values = {"segment.ms": "7", "retention.ms": "4"}
    is_topic = request.resource_type == TOPIC
    described = (DescribedResource(name="t", values=values),) if is_topic else ()
    return DescribeDynamicConfigsResponse(resources=described)


async def test_alter_configs_whole_replacement_removes_unnamed_keys() -> None:
    """KIP-133: AlterConfigs of clients without IncrementalAlterConfigs."""
    whole = message("AlterConfigsRequest")

    def resource(resource_type: int, name: str, **values: str | None) -> Any:
        configs = [
            whole.AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in values.items()
        ]
        return whole.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=configs
        )

    async with brokers(answer=describe_committed) as (rig,):
        response = await rig.ask(
            whole(
                resources=[
                    resource(TOPIC, "t", retention_ms="5", cleanup_policy=None),
                    resource(BROKER, "", follower_replication_throttled_rate="9"),
                ]
            )
        )
        asked = [r for r in rig.controller.seen if isinstance(r, DescribeDynamicConfigsRequest)]
        assert [(r.resource_type, r.names) for r in asked] == [(TOPIC, ("t",)), (BROKER, ("",))]
        (altering,) = [
            r for r in rig.controller.seen if isinstance(r, IncrementalAlterConfigsRequestRpc)
        ]
        changes = [
            (change.name, change.operation, change.value)
            for altered in altering.resources
            for change in altered.changes
        ]
        assert changes == [
            ("segment.ms", 1, None),
            ("retention.ms", 0, "5"),
            ("cleanup.policy", 0, None),
            (OTHER_RATE, 0, "9"),
        ]
        answer_ = [(r.resource_name, r.error_code, r.error_message) for r in response.responses]
        assert answer_ == [("t", 40, "no"), ("", 0, None)]
