"""DescribeConfigs and IncrementalAlterConfigs: what is configured, where it comes from, changes.

Values are the ones in force; a synonym is another place that could set the same thing, with the
value it has there, the winning one first. No value of this version is a secret.
Changes are forwarded to the controller. What only a broker can know, it checks here and says so:
its own values, and those of all brokers. Another broker's are refused while that one is there to
be asked; once it is not, the controller takes what does no harm unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kraftjbod.broker.controller_channel import ControllerChannel
from kraftjbod.broker.cordon_checks import checked_cordons
from kraftjbod.broker.dynamic_configs import DynamicConfigs
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.config import CORDONED_LOG_DIRS, BrokerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError, UnknownTopicOrPartitionError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.topic_config import CleanupPolicy, ThrottledReplicas
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.kafka_codec import Message, message
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceOutcome,
)
from kraftjbod.protocol.rpc_messages import MAX_PARTITIONS_PER_REQUEST

DescribeConfigsResponse = message("DescribeConfigsResponse")
IncrementalAlterConfigsResponse = message("IncrementalAlterConfigsResponse")


class ConfigSource(IntEnum):
    """Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


#: The broker's keys that set a topic key's default, the strongest first.
_BROKER_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "retention.ms": ("log.retention.ms", "log.retention.hours"),
    "retention.bytes": ("log.retention.bytes",),
    "segment.bytes": ("log.segment.bytes",),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "min.insync.replicas": ("min.insync.replicas",),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
    "cleanup.policy": ("log.cleanup.policy",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms",),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "max.message.bytes": ("message.max.bytes",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
}
_OPERATIONS: Final = range(4)
#: What each key of a broker is where nothing sets it; None where it has to be set.
_DEFAULTS: Final[Mapping[str, Any]] = {
    str(field.alias): None if field.is_required() else field.default
    for field in BrokerConfig.model_fields.values()
}
_MAX_INT: Final = 2**31 - 1

_Synonym = tuple[str, str, ConfigSource]
"""A key that could set the value, what it says, and where it stands."""


class _Entry(NamedTuple):
    key: str
    value: Any
    synonyms: list[_Synonym]
    read_only: bool


class ConfigApis:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        dynamic_configs: DynamicConfigs,
        channel: ControllerChannel,
        own_dirs: Callable[[], Collection[str]],
    ) -> None:
        """``own_dirs`` gives the paths of this broker's directories, which may come and go."""
        self._broker_id = config.node_id
        self._config = config
        self._cache = cache
        self._topic_configs = topic_configs
        self._dynamic_configs = dynamic_configs
        self._channel = channel
        self._own_dirs = own_dirs
        self._forward_timeout_ms = config.controller_request_timeout_ms
        self._broker_values: Mapping[str, Any] = config.by_key()
        self._set_by_file: Collection[str] = frozenset(
            name.replace("_", ".") for name in config.model_fields_set
        )

    async def describe_configs(self, request: Message, _context: RequestContext) -> Message:
        response: Message = DescribeConfigsResponse(
            results=[
                self._describe(resource, with_synonyms=request.include_synonyms)
                for resource in request.resources
            ]
        )
        return response

    async def incremental_alter_configs(
        self, request: Message, _context: RequestContext
    ) -> Message:
        try:
            outcomes = await self._alter(request)
        except OperatingError as e:
            outcomes = tuple(
                _refused(resource.resource_type, resource.resource_name, e)
                for resource in request.resources
            )
        response: Message = IncrementalAlterConfigsResponse(
            responses=[
                IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                    resource_type=outcome.resource_type,
                    resource_name=outcome.name,
                )
                for outcome in outcomes
            ]
        )
        return response

    async def _alter(self, request: Message) -> tuple[ResourceOutcome, ...]:
        if len(request.resources) > MAX_PARTITIONS_PER_REQUEST:
            raise OperatingError(
                f"{len(request.resources)} resources in one request; change at most "
                f"{MAX_PARTITIONS_PER_REQUEST} at a time",
                code=ErrorCode.INVALID_REQUEST,
            )
        resources: list[AlteredResource] = []
        refused: list[ResourceOutcome] = []
        for resource in map(_altered, request.resources):
            try:
                resources.append(self._checked(resource))
            except OperatingError as e:
                refused.append(_refused(resource.resource_type, resource.name, e))
        if not resources:
            return tuple(refused)
        forwarded = IncrementalAlterConfigsRequest(
            resources=tuple(resources),
            validate_only=request.validate_only,
            validated_by=self._broker_id,
        )
        answer = await self._channel.call(forwarded, timeout_ms=self._forward_timeout_ms)
        return (*answer.resources, *refused)

    def _checked(self, resource: AlteredResource) -> AlteredResource:
        """:raises OperatingError: INVALID_REQUEST, if another broker has to be asked, or a
        directory cannot be cordoned."""
        if resource.resource_type != ResourceType.BROKER:
            return resource
        is_own = resource.name == str(self._broker_id)
        if resource.name and not is_own:
            self._require_gone(resource.name)
            return resource
        known = self._own_dirs() if is_own else self._all_dirs()
        return resource.model_copy(
            update={
                "changes": tuple(
                    checked_cordons(change, self._config, known, is_own=is_own)
                    if change.name == CORDONED_LOG_DIRS
                    else change
                    for change in resource.changes
                )
            }
        )

    def _require_gone(self, name: str) -> None:
        if not name.isdecimal():
            return
        other = self._cache.state.brokers.get(BrokerId(int(name)))
        if other is not None and other.is_active:
            raise OperatingError(
                f"Unexpected broker id, expected {self._broker_id} or an empty name, but received "
                f"{name}; ask broker {name} itself",
                code=ErrorCode.INVALID_REQUEST,
            )

    def _all_dirs(self) -> Collection[str]:
        """Every directory that some broker registered, and this broker's own."""
        registered = (
            path
            for broker in self._cache.state.brokers.values()
            for path in broker.log_dir_paths.values()
        )
        return {*self._own_dirs(), *registered}

    def _describe(self, resource: Message, *, with_synonyms: bool) -> Message:
        described: Message = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message=None,
        )
        wanted = resource.configuration_keys
        try:
            entries = list(self._entries_of(resource.resource_type, resource.resource_name))
        except OperatingError as e:
            described.error_code, described.error_message = e.code, e.message
            return described
        described.configs = [
            _entry(entry, with_synonyms=with_synonyms)
            for entry in entries
            if not wanted or entry.key in wanted
        ]
        return described

    def _entries_of(self, resource_type: int, name: str) -> Iterable[_Entry]:
        match resource_type:
            case ResourceType.TOPIC:
                return self._topic_entries(name)
            case ResourceType.BROKER:
                return self._broker_entries(name)
            case _:
                raise OperatingError(
                    f"resource type {resource_type} has no configuration here",
                    code=ErrorCode.INVALID_REQUEST,
                )

    def _topic_entries(self, topic: str) -> Iterable[_Entry]:
        if topic not in self._cache.state.topic_ids:
            raise UnknownTopicOrPartitionError(f"topic {topic} does not exist")
        own = self._cache.state.topic_config(topic)
        in_force = self._topic_configs.get(topic).by_key()
        defaults = self._topic_configs.defaults.by_key()
        for key, value in in_force.items():
            synonyms: list[_Synonym] = []
            if key in own:
                synonyms.append((key, own[key], ConfigSource.TOPIC))
            broker_keys = _BROKER_KEYS.get(key, ())
            synonyms += self._broker_synonyms(broker_keys)
            if not broker_keys:
                synonyms.append((key, _text(defaults[key]), ConfigSource.DEFAULT))
            yield _Entry(key, value, synonyms, False)

    def _broker_entries(self, name: str) -> Iterable[_Entry]:
        if name not in (str(self._broker_id), ""):
            raise OperatingError(
                f"this is broker {self._broker_id}; ask broker {name} itself",
                code=ErrorCode.INVALID_REQUEST,
            )
        if not name:
            # What is described of all brokers is only what was set for all of them.
            for key, text in self._cache.state.configs.get((ResourceType.BROKER, ""), {}).items():
                source = ConfigSource.DYNAMIC_DEFAULT_BROKER
                yield _Entry(key, text, [(key, text, source)], False)
            return
        dynamic = self._dynamic_configs.current.by_key()
        for key, value in self._broker_values.items():
            synonyms = [*self._dynamic_synonyms(key), *self._broker_synonyms((key,))]
            yield _Entry(key, dynamic.get(key, value), synonyms, key not in dynamic)

    def _dynamic_synonyms(self, key: str) -> Iterable[_Synonym]:
        for value in self._dynamic_configs.values_of(key):
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER
            if value.is_own:
                source = ConfigSource.DYNAMIC_BROKER
            yield key, value.text, source

    def _broker_synonyms(self, keys: Iterable[str]) -> list[_Synonym]:
        """What the broker's file says of these keys, then what they say by default."""
        in_file = [
            key for key in keys if key in self._set_by_file and self._broker_values[key] is not None
        ]
        by_default = [(key, default) for key in keys if (default := _DEFAULTS[key]) is not None]
        return [
            *((k, _text(self._broker_values[k]), ConfigSource.STATIC_BROKER) for k in in_file),
            *((k, _text(default), ConfigSource.DEFAULT) for k, default in by_default),
        ]


def _refused(resource_type: int, name: str, error: OperatingError) -> ResourceOutcome:
    return ResourceOutcome(
        resource_type=resource_type, name=name, error_code=error.code, error_message=error.message
    )


def _altered(resource: Message) -> AlteredResource:
    """:raises OperatingError: INVALID_REQUEST, for an operation that Kafka does not have."""
    for change in resource.configs:
        if change.config_operation not in _OPERATIONS:
            raise OperatingError(
                f"{change.name}: operation {change.config_operation} is none of 0 (set), "
                "1 (delete), 2 (append) and 3 (subtract)",
                code=ErrorCode.INVALID_REQUEST,
            )
    return AlteredResource(
        resource_type=resource.resource_type,
        name=resource.resource_name,
        changes=tuple(
            ConfigChange(name=change.name, operation=change.config_operation, value=change.value)
            for change in resource.configs
        ),
    )


def _entry(entry: _Entry, *, with_synonyms: bool) -> Message:
    described: Message = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.key,
        value=None if entry.value is None else _text(entry.value),
        read_only=entry.read_only,
        config_source=entry.synonyms[0][2] if entry.synonyms else ConfigSource.DEFAULT,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in (entry.synonyms if with_synonyms else ())
        ],
        config_type=_type_of(entry.value),
        documentation=None,
    )
    return described


def _type_of(value: Any) -> ConfigType:
    match value:
        case bool():
            return ConfigType.BOOLEAN
        case int():
            return ConfigType.INT if value <= _MAX_INT else ConfigType.LONG
        case float():
            return ConfigType.DOUBLE
        case tuple():
            return ConfigType.LIST
        case _:
            return ConfigType.STRING


def _text(value: Any) -> str:
    """A value as Kafka writes it in a properties file."""
    match value:
        case bool():
            return str(value).lower()
        case ThrottledReplicas() | CleanupPolicy():
            return str(value)
        case tuple():
            return ",".join(_part_text(part) for part in value)
        case _:
            return str(value)


def _part_text(part: Any) -> str:
    match part:
        case (str(name), str(host), int(port)):
            return f"{name}://{host}:{port}"
        case (int(node_id), str(host), int(port)):
            return f"{node_id}@{host}:{port}"
        case _:
            return str(part)
