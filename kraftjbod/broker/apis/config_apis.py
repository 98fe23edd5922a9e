"""LOOP. DescribeConfigs, IncrementalAlterConfigs and AlterConfigs: values, their sources, changes.

Values are those in effect. A synonym is a source that can set the same key, with its value there;
the source with precedence is first. Passwords and keys are sensitive: their values are null.
Changes are forwarded to the controller. Checks that only a broker can do are done here, for its own
values and those of all brokers. A change for another broker is refused while that broker is alive.
Otherwise the controller accepts harmless values unchecked.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kraftjbod.broker.apis.admin.forwarding import forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.broker.cluster.group_configs import GroupConfigs
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.directories.cordon_checks import checked_cordons
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.config import CORDONED_LOG_DIRS, UNCLEAN_LEADER_ELECTION, BrokerConfig
from kraftjbod.core.config_model import (
    ConfigType,
    KeyedModel,
    config_meanings,
    config_text,
    config_types,
)
from kraftjbod.core.dynamic_listener_config import (
    is_dynamic_listener_key,
    is_dynamic_store_key,
    require_dynamic_listeners,
)
from kraftjbod.core.errors import (
    ConfigError,
    ErrorCode,
    OperatingError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.group_config import GROUP_KEYS, GroupOverrides
from kraftjbod.core.ids import BrokerId, is_broker_id
from kraftjbod.core.listener_config import ListenerConfig, key_without_listener
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_ANSWER_BYTES, MAX_ITEMS_PER_REQUEST
from kraftjbod.core.topic_config import (
    BROKER_KEYS,
    DEFAULT_MIN_INSYNC_REPLICAS,
    MIN_INSYNC_REPLICAS,
    TopicConfig,
)
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol import rpc_config_messages
from kraftjbod.protocol.alter_configs import (
    as_changes,
    named_in_parts,
    refuse_alter_configs,
    to_alter_configs_response,
)
from kraftjbod.protocol.kafka_codec import encode_part, parts_of
from kraftjbod.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    ConfigSource,
    ResourceOutcome,
)

Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult
CreatedConfig = CreateTopicsResponse.CreatableTopicConfigs
Altered = IncrementalAlterConfigsRequest.AlterConfigsResource


_NAMED_TWICE: Final = OperatingError(
    "the request names the resource more than once; put all its changes together",
    code=ErrorCode.INVALID_REQUEST,
)
_OPERATIONS: Final = range(4)
_SET: Final = 0
#: Default of each broker key; None if it is required.
_DEFAULTS: Final[Mapping[str, Any]] = {
    str(field.alias): None if field.is_required() else field.default
    for field in BrokerConfig.model_fields.values()
}

#: Requires that a broker can use dynamic values of its listeners, by full key.
CheckListeners = Callable[[Mapping[str, str]], Awaitable[None]]

_Synonym = tuple[str, str, ConfigSource]
"""Key, value and source."""


class _Entry(NamedTuple):
    key: str
    value: Any
    synonyms: list[_Synonym]
    read_only: bool
    model: type[KeyedModel] = TopicConfig
    """The model that defines the key."""


class ConfigApis:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        group_configs: GroupConfigs,
        dynamic_configs: DynamicConfigs,
        channel: ControllerChannel,
        own_dirs: Callable[[], Collection[str]],
        check_listeners: CheckListeners,
    ) -> None:
        """Create the handlers.

        :param own_dirs: returns the paths of this broker's directories at the time of the call.
        :param check_listeners: raises ConfigError if this broker cannot use these dynamic values of
            its listeners.
        """
        self._check_listeners = check_listeners
        self._broker_id = config.node_id
        self._config = config
        self._cache = cache
        self._topic_configs = topic_configs
        self._group_configs = group_configs
        self._dynamic_configs = dynamic_configs
        self._channel = channel
        self._own_dirs = own_dirs
        self._forward_timeout_ms = config.controller_request_timeout_ms
        self._broker_values: Mapping[str, Any] = config.by_key()
        self._default_entries: list[_Entry] = []
        #: Metadata version of the cached defaults.
        self._default_version = -1
        self._set_by_file: Collection[str] = frozenset(
            name.replace("_", ".") for name in config.model_fields_set
        )

    async def describe_configs(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        """Answer DescribeConfigs: one result per named resource. Resources after the size limit of
        the response get INVALID_REQUEST.
        """
        answer = _DescribeAnswer(request, context.api_version)
        async for (resource_type, name), keys in in_slices(_folded(request.resources).items()):
            try:
                answer.require_within_limits()
                entries = self._entries_of(resource_type, name)
                answer.add(resource_type, name, entries, keys)
            except OperatingError as e:
                answer.refuse(resource_type, name, e)
        return DescribeConfigsResponse(results=parts_of(Result, answer.results))

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, _context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        refused: list[ResourceOutcome] = []
        resources = await self._with_usable_stores(request.resources, refused)
        altered = await forward(
            self._channel,
            self._to_alter(resources, refused),
            ask=lambda part: rpc_config_messages.IncrementalAlterConfigsRequestRpc(
                resources=part,
                validate_only=request.validate_only,
                validated_by=self._broker_id,
            ),
            outcomes=lambda answer: answer.resources,
            refuse=lambda resource, e: _refused(resource.resource_type, resource.name, e),
            timeout_ms=self._forward_timeout_ms,
        )
        outcomes = (*altered, *refused)
        return IncrementalAlterConfigsResponse(
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

    async def alter_configs(
        self, request: AlterConfigsRequest, context: RequestContext
    ) -> AlterConfigsResponse:
        """Answer AlterConfigs: replace all values of a resource, so that unnamed values are
        removed.

        The present values come from the controller, because this broker's metadata may be older.
        """
        present: dict[tuple[int, str], Collection[str]] = {}
        try:
            for kind, names in named_in_parts(request):
                ask = rpc_config_messages.DescribeDynamicConfigsRequest(
                    resource_type=kind, names=names
                )
                found = await self._channel.forward(ask, timeout_ms=self._forward_timeout_ms)
                present |= {(kind, each.name): each.values for each in found.resources}
        except OperatingError as e:
            return refuse_alter_configs(request, e)
        changes = as_changes(request, present)
        return to_alter_configs_response(await self.incremental_alter_configs(changes, context))

    async def _with_usable_stores(
        self, resources: Sequence[Altered], refused: list[ResourceOutcome]
    ) -> Sequence[Altered]:
        """Return the resources without this broker if it cannot use the changed key stores of its
        listeners. The outcome is added to ``refused`` then."""
        key = ResourceType.BROKER, str(self._broker_id)
        own = [r for r in resources if (r.resource_type, r.resource_name) == key]
        # A resource that is named twice is refused later.
        if len(own) != 1 or not any(is_dynamic_store_key(c.name) for c in own[0].configs):
            return resources
        try:
            await self._require_usable_stores(own[0])
        except OperatingError as e:
            refused.append(_refused(*key, e))
            return [resource for resource in resources if resource is not own[0]]
        return resources

    async def _require_usable_stores(self, resource: Altered) -> None:
        """Require that this broker can use the key stores of its listeners after a change.

        :raises OperatingError: INVALID_CONFIG: it cannot. REQUEST_TIMED_OUT: reading them takes too
            long.
        """
        source = f"broker {self._broker_id}"
        present = self._cache.state.configs.get((ResourceType.BROKER, resource.resource_name), {})
        after = {key: text for key, text in present.items() if is_dynamic_listener_key(key)}
        for change in resource.configs:
            if is_dynamic_listener_key(change.name):
                after.pop(change.name, None)
                if change.config_operation == _SET and change.value is not None:
                    after[change.name] = change.value
        try:
            require_dynamic_listeners(after, source=source)
            async with asyncio.timeout(self._forward_timeout_ms / 1000):
                await self._check_listeners(after)
        except ConfigError as e:
            raise OperatingError(str(e), code=ErrorCode.INVALID_CONFIG) from e
        except TimeoutError:
            raise OperatingError(
                "the key stores are not read yet: their disk may hang",
                code=ErrorCode.REQUEST_TIMED_OUT,
            ) from None

    def _to_alter(
        self,
        resources: Sequence[Altered],
        refused: list[ResourceOutcome],
    ) -> Iterator[AlteredResource]:
        """Yield the resources to forward. The outcomes of the others are added to ``refused``, each
        once."""
        named = Counter((r.resource_type, r.resource_name) for r in resources)
        for resource in resources:
            key = resource.resource_type, resource.resource_name
            times = named.pop(key, 0)
            if times == 1:
                try:
                    yield self._checked(_altered(resource))
                except OperatingError as e:
                    refused.append(_refused(*key, e))
            elif times > 1:
                refused.append(_refused(*key, _NAMED_TWICE))

    def _checked(self, resource: AlteredResource) -> AlteredResource:
        """Return the change with its cordons resolved, after the checks that only a broker can do.

        :raises OperatingError: INVALID_REQUEST: another broker must be asked, or a directory cannot
            be cordoned. INVALID_CONFIG: a group's value is invalid.
        """
        if resource.resource_type == ResourceType.GROUP:
            self._group_configs.require_valid(resource)
        if resource.resource_type != ResourceType.BROKER:
            return resource
        is_own = resource.name == str(self._broker_id)
        if resource.name and not is_own:
            self._require_no_active_broker(resource.name)
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

    def _require_no_active_broker(self, name: str) -> None:
        if not is_broker_id(name):
            return
        other = self._cache.state.brokers.get(BrokerId(int(name)))
        if other is not None and other.is_active:
            raise OperatingError(
                f"Unexpected broker id, expected {self._broker_id} or an empty name, but received "
                f"{name}; ask broker {name} itself",
                code=ErrorCode.INVALID_REQUEST,
            )

    def _all_dirs(self) -> Collection[str]:
        """Return the directory paths of all registered brokers and of this broker."""
        registered = (
            path
            for broker in self._cache.state.brokers.values()
            for path in broker.log_dir_paths.values()
        )
        return {*self._own_dirs(), *registered}

    def _entries_of(self, resource_type: int, name: str) -> Iterable[_Entry]:
        match resource_type:
            case ResourceType.TOPIC:
                return self._topic_entries(name)
            case ResourceType.BROKER:
                return self._broker_entries(name)
            case ResourceType.GROUP:
                return self._group_entries(name)
            case _:
                raise OperatingError(
                    f"resource type {resource_type} has no configuration here",
                    code=ErrorCode.INVALID_REQUEST,
                )

    def _topic_entries(self, topic: str) -> Iterable[_Entry]:
        if topic not in self._cache.state.topic_ids:
            raise UnknownTopicOrPartitionError(f"topic {topic} does not exist")
        state = self._cache.state
        registered = state.topics.get(state.topic_ids[topic])
        partitions = registered.partitions.values() if registered is not None else ()
        factor = max((p.replication_factor for p in partitions), default=None)
        config = self._topic_configs.get(topic)
        return self._entries_with(state.topic_config(topic), config, factor)

    def configs_of_new_topic(
        self, own: Mapping[str, str], replication_factor: int
    ) -> list[CreatedConfig]:
        """Return all configuration entries of a new topic with the values ``own``, for
        CreateTopics.

        :param replication_factor: upper limit of the default of ``min.insync.replicas``.
        """
        config = self._topic_configs.of_new_topic(own)
        entries = self._entries_with(own, config, replication_factor)
        return [
            CreatedConfig(
                name=entry.key,
                value=None if entry.value is None else config_text(entry.value),
                read_only=entry.read_only,
                config_source=_source_of(entry),
            )
            for entry in sorted(entries, key=lambda entry: entry.key)
        ]

    def _entries_with(
        self, own: Mapping[str, str], config: TopicConfig, replication_factor: int | None
    ) -> Iterator[_Entry]:
        """Yield the entries of a topic with the values ``own`` and the resulting ``config``."""
        in_force = config.by_key()
        for default in self._topic_defaults():
            key = default.key
            if key == MIN_INSYNC_REPLICAS:
                yield self._min_isr_of(own.get(key), in_force[key], replication_factor, default)
            elif key in own:
                own_value = (key, own[key], ConfigSource.TOPIC)
                yield _Entry(key, in_force[key], [own_value, *default.synonyms], False)
            else:
                yield default

    def _min_isr_of(
        self, own: str | None, value: int, replication_factor: int | None, default: _Entry
    ) -> _Entry:
        """Return the entry of ``min.insync.replicas``: the topic's value, the cluster's, or the
        default.

        The default is two, or a larger value in the broker's file, but at most the replication
        factor.
        """
        key = default.key
        synonyms = [] if own is None else [(key, own, ConfigSource.TOPIC)]
        synonyms += self._dynamic_synonyms(key)
        if not synonyms and replication_factor is not None:
            value = min(value, replication_factor)
        counts = [s for s in default.synonyms if int(s[1]) >= DEFAULT_MIN_INSYNC_REPLICAS]
        return _Entry(key, value, [*synonyms, *counts], False)

    def _topic_defaults(self) -> list[_Entry]:
        """Return the entries of a topic without own values, cached until the metadata changes."""
        if not self._default_entries or self._default_version != self._cache.version:
            self._default_entries, self._default_version = [], self._cache.version
            for key, value in self._topic_configs.defaults.by_key().items():
                broker_keys = BROKER_KEYS.get(key, ())
                synonyms = self._broker_synonyms(broker_keys)
                if key != MIN_INSYNC_REPLICAS:
                    dynamic = map(self._dynamic_synonyms, broker_keys)
                    synonyms[:0] = itertools.chain.from_iterable(dynamic)
                if key == UNCLEAN_LEADER_ELECTION:
                    # Controllers use this value in elections.
                    value = next((text for _, text, _ in self._dynamic_synonyms(key)), value)
                if not broker_keys:
                    synonyms.append((key, config_text(value), ConfigSource.DEFAULT))
                self._default_entries.append(_Entry(key, value, synonyms, False))
        return self._default_entries

    def _group_entries(self, group_id: str) -> Iterable[_Entry]:
        """Yield the entries of a group. The group need not exist.

        :raises OperatingError: INVALID_REQUEST: the id is empty.
        """
        if not group_id:
            raise OperatingError("name a group", code=ErrorCode.INVALID_REQUEST)
        own = self._group_configs.own(group_id)
        for key, value in self._group_configs.in_force(group_id).by_key().items():
            synonyms = self._broker_synonyms((GROUP_KEYS[key],))
            if key in own:
                synonyms.insert(0, (key, own[key], ConfigSource.GROUP))
            yield _Entry(key, value, synonyms, False, GroupOverrides)

    def _broker_entries(self, name: str) -> Iterable[_Entry]:
        if name not in (str(self._broker_id), ""):
            raise OperatingError(
                f"this is broker {self._broker_id}; ask broker {name} itself",
                code=ErrorCode.INVALID_REQUEST,
            )
        if not name:
            # For all brokers, only values that were set for all brokers are described.
            for key, text in self._cache.state.configs.get((ResourceType.BROKER, ""), {}).items():
                source = ConfigSource.DYNAMIC_DEFAULT_BROKER
                yield _Entry(key, text, [(key, text, source)], False, BrokerConfig)
            return
        dynamic = self._dynamic_configs.current.by_key()
        for key, value in self._broker_values.items():
            is_fixed, synonyms = key not in dynamic, self._broker_synonyms((key,))
            if not is_fixed:
                # Controllers use the values with the same names.
                synonyms[:0] = self._dynamic_synonyms(key)
            yield _Entry(key, dynamic.get(key, value), synonyms, is_fixed, BrokerConfig)
        for key in self._dynamic_configs.listener_keys():
            synonyms = [*self._dynamic_synonyms(key)]
            yield _Entry(key, synonyms[0][1], synonyms, False, ListenerConfig)

    def _dynamic_synonyms(self, key: str) -> Iterable[_Synonym]:
        for value in self._dynamic_configs.values_of(key):
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER
            if value.is_own:
                source = ConfigSource.DYNAMIC_BROKER
            yield key, value.text, source

    def _broker_synonyms(self, keys: Iterable[str]) -> list[_Synonym]:
        """Return the values of ``keys`` in the broker's file, followed by the defaults of these
        keys."""
        in_file = [
            key for key in keys if key in self._set_by_file and self._broker_values[key] is not None
        ]
        by_default = [(key, default) for key in keys if (default := _DEFAULTS[key]) is not None]
        return [
            *(
                (k, config_text(self._broker_values[k]), ConfigSource.STATIC_BROKER)
                for k in in_file
            ),
            *((k, config_text(default), ConfigSource.DEFAULT) for k, default in by_default),
        ]


class _DescribeAnswer:
    """The results of DescribeConfigs, each encoded at once so that a long response takes little
    memory."""

    def __init__(self, request: DescribeConfigsRequest, version: int) -> None:
        self._request = request
        self._version = version
        self._bytes = 0
        #: Encoded entries by object id: thousands of topics share their defaults.
        self._encoded: dict[int, tuple[_Entry, bytes]] = {}
        self.results: list[bytes] = []

    def require_within_limits(self) -> None:
        """Require that the response may have another result.

        :raises OperatingError: INVALID_REQUEST: the response has reached a limit.
        """
        if len(self.results) >= MAX_ITEMS_PER_REQUEST or self._bytes >= MAX_ANSWER_BYTES:
            raise OperatingError(
                "the answer is too long already; ask for this one again",
                code=ErrorCode.INVALID_REQUEST,
            )

    def add(
        self,
        resource_type: int,
        name: str,
        entries: Iterable[_Entry],
        keys: Collection[str] | None,
    ) -> None:
        """Add the result for a resource.

        :param keys: the requested keys; None for all.
        """
        configs = [self._encode(e) for e in entries if keys is None or e.key in keys]
        self._put(
            Result(
                resource_type=resource_type,
                resource_name=name,
                error_message=None,
                configs=parts_of(Entry, configs),
            )
        )

    def refuse(self, resource_type: int, name: str, error: OperatingError) -> None:
        self._put(
            Result(
                resource_type=resource_type,
                resource_name=name,
                error_code=error.code,
                error_message=error.message,
            )
        )

    def _put(self, result: Result) -> None:
        encoded = encode_part(self._version, result)
        self._bytes += len(encoded)
        self.results.append(encoded)

    def _encode(self, entry: _Entry) -> bytes:
        found = self._encoded.get(id(entry))
        if found is None:
            # Stored with the entry, so that its object id is not reused.
            described = _entry(entry, self._request)
            found = self._encoded[id(entry)] = entry, encode_part(self._version, described)
        return found[1]


def _folded(
    resources: Iterable[DescribeConfigsRequest.DescribeConfigsResource],
) -> dict[tuple[int, str], set[str] | None]:
    """Return the requested keys of each named resource; None stands for all keys."""
    folded: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        wanted = resource.configuration_keys
        if not wanted:
            folded[key] = None
        elif (keys := folded.setdefault(key, set())) is not None:
            keys.update(wanted)
    return folded


def _refused(resource_type: int, name: str, error: OperatingError) -> ResourceOutcome:
    return ResourceOutcome(
        resource_type=resource_type, name=name, error_code=error.code, error_message=error.message
    )


def _altered(resource: Altered) -> AlteredResource:
    """Return a resource's changes in the form of the controller's request.

    :raises OperatingError: INVALID_REQUEST: an operation is unknown.
    """
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


def _source_of(entry: _Entry) -> ConfigSource:
    return entry.synonyms[0][2] if entry.synonyms else ConfigSource.DEFAULT


def _entry(entry: _Entry, asked: DescribeConfigsRequest) -> Entry:
    """Return an entry of the response, with synonyms and documentation if they are requested."""
    meanings = config_meanings(entry.model) if asked.include_documentation else {}
    key = key_without_listener(entry.key)
    config_type = config_types(entry.model).get(key, ConfigType.STRING)
    is_sensitive = config_type is ConfigType.PASSWORD
    return Entry(
        name=entry.key,
        value=None if entry.value is None or is_sensitive else config_text(entry.value),
        read_only=entry.read_only,
        is_sensitive=is_sensitive,
        config_source=_source_of(entry),
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(
                name=name, value=None if is_sensitive else text, source=source
            )
            for name, text, source in (entry.synonyms if asked.include_synonyms else ())
        ],
        config_type=config_type,
        documentation=meanings.get(key),
    )
