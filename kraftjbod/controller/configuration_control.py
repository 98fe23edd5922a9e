"""PURE. ``ConfigurationControlManager``: the configuration of topics, brokers and groups.

* A change is checked against the configuration that results from it, before it is recorded.
* Topics accept every topic-level key. Brokers and controllers accept only keys that they can apply
  while they run. The empty broker name means all brokers.
* Groups need not exist. The broker that received the request checks their values, because its file
  has the bounds.
* Each resource of a request succeeds or fails separately. A resource that is named twice fails.
* The broker that has the directories checks which ones ``cordoned.log.dirs`` may name. An unchecked
  change, for a dead broker, may only lift cordons (KIP-1066).
* A change of that key changes the brokers' registrations in the same entry.
* ``min.insync.replicas`` and ``unclean.leader.election.enable`` may be set for a topic or for the
  whole cluster, but not for one node, because elections depend on them (KIP-966).
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, assert_never

from kraftjbod.controller.brokers.dynamic_cordons import (
    cordoned_ids,
    dynamic_cordons,
    dynamic_value,
)
from kraftjbod.controller.partitions.topic_rules import RulesOf, TopicRules
from kraftjbod.controller.quorum.controller_settings import SettingsInForce
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.config import (
    CORDONED_LOG_DIRS,
    DYNAMIC_CONTROLLER_KEYS,
    DYNAMIC_LIST_KEYS,
    UNCLEAN_LEADER_ELECTION,
    DynamicBrokerConfig,
    DynamicControllerConfig,
    require_dynamic,
)
from kraftjbod.core.config_model import KeyedModel, list_items, stored_values
from kraftjbod.core.dynamic_listener_config import is_dynamic_listener_key, is_dynamic_store_key
from kraftjbod.core.errors import ConfigError, ErrorCode, OperatingError
from kraftjbod.core.group_config import GroupOverrides
from kraftjbod.core.ids import BrokerId, DirectoryId, is_broker_id
from kraftjbod.core.kafka_keys import canonical_key
from kraftjbod.core.metadata_version import GROUP_VERSION, MetadataVersion
from kraftjbod.core.node_config import ALL_LOG_DIRS, ConnectionLimitKeys
from kraftjbod.core.request_limits import MAX_CONFIG_VALUE_BYTES
from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS, TOPIC_LIST_KEYS, TopicConfig
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    ResourceType,
)
from kraftjbod.metadata.registrations import BrokerRegistration
from kraftjbod.metadata.state import Configs, MetadataState, overrides_of
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


class ConfigOperation(IntEnum):
    """How a request changes the value of a key (KIP-339), with Kafka's numbers. APPEND and SUBTRACT
    add and remove elements of a list.
    """

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigurationControlManager:
    """Decides changes of the configurations of topics, brokers and groups. Returns records; the
    replay of the records changes the metadata.
    """

    def __init__(self, *, state: MetadataState, settings: SettingsInForce) -> None:
        self._state = state
        self._settings = settings
        self._known_defaults = TopicConfig()

    @property
    def _defaults(self) -> TopicConfig:
        """The default configuration of topics, as far as controllers decide by it."""
        is_unclean = self._settings.now.unclean_leader_election_enable
        if is_unclean != self._known_defaults.unclean_leader_election_enable:
            self._known_defaults = TopicConfig(unclean_leader_election_enable=is_unclean)
        return self._known_defaults

    def new_topic(self, name: str, configs: Mapping[str, str | None]) -> tuple[ConfigRecord, ...]:
        """Return the records of a new topic's own values. A value of None means the default.

        :raises OperatingError: INVALID_CONFIG, naming each key that is unknown or wrong.
        """
        given = {key: _fitting(key, v) for key, v in configs.items() if v is not None}
        self._require_valid(ResourceType.TOPIC, name, given)
        return _difference(ResourceType.TOPIC, name, {}, given)

    def rules_of(self, topic: str) -> TopicRules:
        """Return the topic's rules for elections and in-sync replicas."""
        return self._rules_by(self._state.configs, topic)

    def rules_after(self, records: Iterable[Record]) -> RulesOf:
        """Return a function that answers as :meth:`rules_of` after ``records`` are replayed."""
        after: dict[tuple[ResourceType, str], Mapping[str, str]] = dict(self._state.configs)
        for record in records:
            if isinstance(record, ConfigRecord):
                key = (record.resource_type, record.resource_name)
                values = {**after.get(key, {}), record.name: record.value}
                after[key] = {name: text for name, text in values.items() if text is not None}
        return lambda topic: self._rules_by(after, topic)

    def _rules_by(self, configs: Configs, topic: str) -> TopicRules:
        own = overrides_of(configs, topic)
        deciding = {key: own[key] for key in _DECIDING_KEYS if key in own}
        config = self._defaults
        if deciding:
            config, _ = config.with_stored_overrides(deciding, source=f"topic {topic}")
        return TopicRules(
            may_elect_unclean=config.unclean_leader_election_enable,
            min_isr=config.min_insync_replicas,
            has_elr=self._state.has_elr,
        )

    # --- IncrementalAlterConfigs -----------------------------------------------------------------

    def incremental_alter(
        self, request: IncrementalAlterConfigsRequestRpc
    ) -> ControllerResult[IncrementalAlterConfigsResponseRpc]:
        """Return the records of changed values of topics, brokers and groups (KIP-339).

        The outcome of one resource does not depend on those of others. The records also change the
        cordoned directories that follow from the values. With ``validate_only`` there are no
        records.
        """
        named = Counter((resource.resource_type, resource.name) for resource in request.resources)
        records: list[ConfigRecord] = []
        outcomes: list[ResourceOutcome] = []
        for resource in request.resources:
            code, message = ErrorCode.NONE, None
            try:
                if named[resource.resource_type, resource.name] > 1:
                    raise _error(
                        ErrorCode.INVALID_REQUEST,
                        f"{_name(resource)} is named twice; put all its changes together.",
                    )
                records += self._alter_one(resource, request.validated_by)
            except OperatingError as e:
                code, message = e.code, e.message
            outcomes.append(
                ResourceOutcome(
                    resource_type=resource.resource_type,
                    name=resource.name,
                    error_code=code,
                    error_message=message,
                )
            )
        made: tuple[Record, ...] = ()
        if not request.validate_only:
            made = (*records, *self._changed_cordons(records))
        return ControllerResult(
            records=made, response=IncrementalAlterConfigsResponseRpc(resources=tuple(outcomes))
        )

    def _alter_one(
        self, resource: AlteredResource, validated_by: BrokerId | None
    ) -> tuple[ConfigRecord, ...]:
        resource_type = self._find(resource)
        present = self._state.configs.get((resource_type, resource.name), {})
        wanted = stored_values(present, *_MODELS[resource_type])
        changes = resource.changes
        if resource_type is ResourceType.BROKER:
            changes = tuple(
                change.model_copy(update={"name": canonical_key(change.name)}) for change in changes
            )
        for key, count in Counter(change.name for change in changes).items():
            if count > 1:
                raise _error(
                    ErrorCode.INVALID_REQUEST, f"{key} of {_name(resource)} changes twice."
                )
        for change in changes:
            self._apply(change, resource_type, wanted)
        self._require_valid(resource_type, resource.name, wanted)
        if resource_type is ResourceType.BROKER:
            for key in _DECIDING_KEYS:
                if resource.name and key in wanted:
                    raise _error(
                        ErrorCode.INVALID_CONFIG,
                        f"{key} cannot differ from node to node; set it for all of them (an empty "
                        "name, --entity-default), or for a topic.",
                    )
            is_checked = validated_by is not None and resource.name in ("", str(validated_by))
            before, after = present.get(CORDONED_LOG_DIRS), wanted.get(CORDONED_LOG_DIRS)
            if after is not None and before != after:
                self._require_may_cordon(resource.name, after, is_checked=is_checked)
            if not is_checked:
                _require_same_stores(resource.name, present, wanted)
        return _difference(resource_type, resource.name, present, wanted)

    def _find(self, resource: AlteredResource) -> ResourceType:
        """Return the type of the resource, which must exist and be configurable.

        :raises OperatingError: the resource does not exist, or its type is not configured here.
        """
        match resource.resource_type:
            case ResourceType.TOPIC:
                if self._state.topic(resource.name) is None:
                    raise _error(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"There is no topic '{resource.name}'.",
                    )
                return ResourceType.TOPIC
            case ResourceType.BROKER:
                self._require_node(resource.name)
                return ResourceType.BROKER
            case ResourceType.GROUP:
                self._require_group(resource.name)
                return ResourceType.GROUP
            case _:
                raise _error(
                    ErrorCode.INVALID_REQUEST,
                    f"Resources of type {resource.resource_type} are not configured here; "
                    "topics (2), brokers (4) and groups (32) are.",
                )

    def _require_group(self, name: str) -> None:
        if not name:
            raise _error(
                ErrorCode.INVALID_REQUEST,
                "Default group resources are not allowed; name a group, or set the keys "
                "group.consumer.… in the brokers' files.",
            )
        if not self._state.features.get(GROUP_VERSION, 0):
            # Brokers of older versions do not know group configurations and must not receive them.
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"Groups can be configured from level 1 of {GROUP_VERSION} on; raise it with "
                "kraftjbod-features.",
            )

    def _require_node(self, name: str) -> None:
        if not name:
            return
        if not is_broker_id(name):
            raise _error(
                ErrorCode.INVALID_REQUEST,
                f"'{name}' is not a broker id; an empty name means all brokers.",
            )
        node_id = BrokerId(int(name))
        is_there = node_id in self._state.brokers or node_id in self._state.controllers
        if not is_there and (ResourceType.BROKER, name) not in self._state.configs:
            # Remaining values of an unregistered broker may be removed.
            raise _error(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {name} is not registered.")

    def _apply(
        self, change: ConfigChange, resource_type: ResourceType, values: dict[str, str]
    ) -> None:
        operation = ConfigOperation(change.operation)
        if operation is ConfigOperation.DELETE:
            values.pop(change.name, None)
            return
        if change.value is None:
            raise _error(
                ErrorCode.INVALID_REQUEST, f"{operation.name} of {change.name} lacks a value."
            )
        value = change.value
        if change.name == CORDONED_LOG_DIRS:
            value = ",".join(map(_canonical, list_items(value)))
        if operation is ConfigOperation.SET:
            values[change.name] = _fitting(change.name, value)
            return
        is_list = change.name in _LIST_KEYS[resource_type]
        if not is_list:
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"{change.name} is no list, so {operation.name} does not apply to it; use SET.",
            )
        present = list_items(self._list_value(change, resource_type, values))
        items = list_items(value)
        if operation is ConfigOperation.SUBTRACT and ALL_LOG_DIRS in present and present != items:
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"{change.name} is {ALL_LOG_DIRS}, from which nothing can be subtracted; set the "
                "directories that shall stay.",
            )
        values[change.name] = _fitting(change.name, ",".join(_changed(present, operation, items)))

    def _list_value(
        self, change: ConfigChange, resource_type: ResourceType, values: Mapping[str, str]
    ) -> str:
        """Return the present value of the list that APPEND or SUBTRACT changes.

        If the resource has no own value, it is the default or the value for all brokers.
        """
        if change.name in values:
            return values[change.name]
        if resource_type is ResourceType.TOPIC:
            return str(self._defaults.by_key()[change.name])
        of_all = self._state.configs.get((ResourceType.BROKER, ""), {})
        return of_all.get(change.name, change.base or "")

    def _require_valid(
        self, resource_type: ResourceType, name: str, values: Mapping[str, str]
    ) -> None:
        """Require that ``values`` are a valid configuration of the resource.

        :raises OperatingError: INVALID_CONFIG, naming each key that is unknown or wrong.
        """
        try:
            match resource_type:
                case ResourceType.TOPIC:
                    self._defaults.with_overrides(values, source=f"topic {name}")
                case ResourceType.BROKER:
                    self._require_valid_of_node(name, values)
                case ResourceType.GROUP:
                    GroupOverrides.from_values(values, source=f"group {name}")
                case _:
                    assert_never(resource_type)
        except ConfigError as e:
            raise _error(ErrorCode.INVALID_CONFIG, str(e)) from e

    def _require_valid_of_node(self, name: str, values: Mapping[str, str]) -> None:
        """Require that ``values`` are valid for a broker, a controller, or all (empty ``name``).

        :raises ConfigError: a key or value is not valid.
        """
        state, node_id = self._state, BrokerId(int(name)) if name else None
        stores = sorted(key for key in values if is_dynamic_store_key(key))
        if stores and not name:
            raise ConfigError(
                "Cannot update these configs at default cluster level, per-broker configs must be "
                f"used: {', '.join(stores)}"
            )
        is_broker, is_controller = node_id in state.brokers, node_id in state.controllers
        self._require_level_for(values)
        if is_broker or not state.metadata_version.has_controllers:
            source = f"broker {name}" if name else "all brokers"
            require_dynamic(values, DynamicBrokerConfig, source=source)
        elif is_controller:
            source = f"controller {name}"
            require_dynamic(values, DynamicControllerConfig, source=source, node="controller")
        else:
            source = f"node {name}" if name else "all nodes"
            models = DynamicBrokerConfig, DynamicControllerConfig
            require_dynamic(values, *models, source=source, node="broker or controller")

    def _require_level_for(self, values: Mapping[str, str]) -> None:
        """Require that no key needs a higher ``metadata.version``: all brokers must know controller
        keys.

        :raises OperatingError: INVALID_CONFIG.
        """
        of_listeners = [key for key in values if is_dynamic_listener_key(key)]
        of_listeners += ConnectionLimitKeys.keys() & values.keys()
        if of_listeners and not self._state.metadata_version.has_access_control:
            # Controllers of older versions refuse all later changes of such a broker.
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"The {of_listeners[0]} configuration value cannot be set because it requires "
                f"metadata.version >= {MetadataVersion.IV_4_4_IV2_J1.release}",
            )
        above = sorted(DYNAMIC_CONTROLLER_KEYS & values.keys())
        if above and not self._state.metadata_version.has_controllers:
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"The {above[0]} configuration value cannot be set because it requires "
                f"metadata.version >= {MetadataVersion.IV_4_4_IV2.release}",
            )

    # --- cordons (KIP-1066) ----------------------------------------------------------------------

    def _require_may_cordon(self, name: str, wanted: str, *, is_checked: bool) -> None:
        """Require that ``wanted`` is a valid value of ``cordoned.log.dirs``.

        :param is_checked: whether the broker that has the directories checked the value.
        :raises OperatingError: INVALID_CONFIG, in Kafka's words.
        """
        if not self._state.metadata_version.has_cordoning:
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"The {CORDONED_LOG_DIRS} configuration value cannot be set because it requires "
                "metadata.version >= 4.3-IV0",
            )
        if not is_checked and not self._present_cordons(name).issuperset(list_items(wanted)):
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"When updating {CORDONED_LOG_DIRS} via controllers, the new value must be a "
                "subset of the current configuration value.",
            )

    def _present_cordons(self, name: str) -> frozenset[str]:
        """Return the paths that are cordoned now by a broker's value, or by the value for all
        brokers.

        ``*`` and the value in the broker's file are resolved to paths.
        """
        if not name:
            of_all = self._state.configs.get((ResourceType.BROKER, ""), {})
            return frozenset(list_items(of_all.get(CORDONED_LOG_DIRS, "")))
        broker_id = BrokerId(int(name))
        text = dynamic_value(self._state.configs, broker_id)
        said = list_items(text) if text is not None else []
        broker = self._state.brokers.get(broker_id)
        if broker is None:
            # A controller, or a broker that was unregistered and has stored values.
            return frozenset(said)
        ids = broker.cordoned_log_dirs if text is None else cordoned_ids(broker, said)
        return frozenset((*said, *(broker.log_dir_paths.get(d, "") for d in ids)))

    def _changed_cordons(
        self, records: Iterable[ConfigRecord]
    ) -> Iterator[BrokerRegistrationChangeRecord]:
        """Yield the changes of broker registrations that follow from changed
        ``cordoned.log.dirs``."""
        changed = [record for record in records if record.name == CORDONED_LOG_DIRS]
        if not changed or not self._state.metadata_version.has_cordoning:
            return
        after: dict[tuple[ResourceType, str], Mapping[str, str]] = dict(self._state.configs)
        for record in changed:
            key = (record.resource_type, record.resource_name)
            after[key] = {} if record.value is None else {CORDONED_LOG_DIRS: record.value}
        for _, broker in sorted(self._state.brokers.items()):
            cordoned = self._cordons_after(broker, after)
            if cordoned is not None and cordoned != broker.cordoned_log_dirs:
                yield BrokerRegistrationChangeRecord(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.epoch,
                    cordoned_log_dirs=cordoned,
                )

    def _cordons_after(
        self,
        broker: BrokerRegistration,
        after: Mapping[tuple[ResourceType, str], Mapping[str, str]],
    ) -> tuple[DirectoryId, ...] | None:
        """Return the broker's cordoned directories by the configuration ``after``.

        None if its file counts again: its next heartbeat will report them.
        """
        cordoned = dynamic_cordons(after, broker)
        was_set = dynamic_value(self._state.configs, broker.broker_id) is not None
        if cordoned is None and was_set and broker.fenced:
            # A fenced broker sends no file value before it registers again.
            return ()
        return cordoned

    # --- DescribeDynamicConfigs ------------------------------------------------------------------

    def describe(
        self, request: DescribeDynamicConfigsRequest
    ) -> ControllerResult[DescribeDynamicConfigsResponse]:
        """Return the committed values of each requested resource that has any."""
        wanted = None if request.names is None else frozenset(request.names)
        return ControllerResult(
            response=DescribeDynamicConfigsResponse(
                resources=tuple(
                    DescribedResource(name=name, values=dict(values))
                    for (kind, name), values in sorted(self._state.configs.items())
                    if kind == request.resource_type
                    and values
                    and (wanted is None or name in wanted)
                )
            )
        )


#: Keys by which controllers elect leaders and count in-sync replicas.
_DECIDING_KEYS: Final = (MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION)
_MODELS: Final[Mapping[ResourceType, tuple[type[KeyedModel], ...]]] = {
    ResourceType.TOPIC: (TopicConfig,),
    ResourceType.BROKER: (DynamicBrokerConfig, DynamicControllerConfig),
    ResourceType.GROUP: (GroupOverrides,),
}
_LIST_KEYS: Final[Mapping[ResourceType, frozenset[str]]] = {
    ResourceType.TOPIC: frozenset(TOPIC_LIST_KEYS),
    ResourceType.BROKER: DYNAMIC_LIST_KEYS,
    ResourceType.GROUP: frozenset(),
}


def _require_same_stores(name: str, present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Require that a change, which the broker did not check, sets no key store.

    :raises OperatingError: INVALID_REQUEST.
    """
    for key, text in wanted.items():
        if is_dynamic_store_key(key) and present.get(key) != text:
            raise _error(
                ErrorCode.INVALID_REQUEST,
                f"{key} can be set only while broker {name} runs, and at that broker, which checks "
                "the key store.",
            )


def _fitting(key: str, value: str) -> str:
    """Return ``value`` if it is not too long for responses.

    :raises OperatingError: INVALID_CONFIG, in Kafka's words: the value is too long.
    """
    if len(value.encode()) > MAX_CONFIG_VALUE_BYTES:
        raise _error(
            ErrorCode.INVALID_CONFIG,
            f"The configuration value of {key} cannot be added because it exceeds the maximum "
            f"value size of {MAX_CONFIG_VALUE_BYTES} bytes.",
        )
    return value


def _canonical(path: str) -> str:
    """Return an absolute path as brokers register it. A relative path is unchanged."""
    return posixpath.normpath(path) if path.startswith("/") else path


def _difference(
    resource_type: ResourceType, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[ConfigRecord, ...]:
    """Return the records that turn ``before`` into ``after``."""
    return tuple(
        ConfigRecord(
            resource_type=resource_type, resource_name=name, name=key, value=after.get(key)
        )
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    )


def _changed(present: list[str], operation: ConfigOperation, items: list[str]) -> list[str]:
    if operation is ConfigOperation.APPEND:
        return list(dict.fromkeys((*present, *items)))
    return [item for item in present if item not in items]


def _name(resource: AlteredResource) -> str:
    if resource.resource_type in frozenset(ResourceType):
        return f"{ResourceType(resource.resource_type).name.lower()} '{resource.name}'"
    return f"resource '{resource.name}' of type {resource.resource_type}"


def _error(code: ErrorCode, message: str) -> OperatingError:
    return OperatingError(message, code=code)
