"""``ConfigurationControlManager``: what topics and brokers are configured to.

* A change is checked as the resource will be after it, before anything is recorded.
* Topics take every topic-level key; brokers only what they can take over while they run, and the
  empty broker name stands for all of them.
* Each resource of a request succeeds or fails by itself; named twice, it fails both times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import assert_never

from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.errors import ConfigError, ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.topic_config import TOPIC_LIST_KEYS, TopicConfig
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ResourceOutcome,
)


class ConfigOperation(IntEnum):
    """What a change does to one value; Kafka's numbers (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigurationControlManager:
    """Decides about configurations; reads the shared state and changes nothing."""

    def __init__(self, *, state: MetadataState, defaults: TopicConfig) -> None:
        self._state = state
        self._defaults = defaults

    def new_topic(self, name: str, configs: Mapping[str, str | None]) -> tuple[ConfigRecord, ...]:
        """Records of a new topic's own values; a value of None means the default.

        :raises OperatingError: INVALID_CONFIG, naming each key that is unknown or wrong.
        """
        given = {key: value for key, value in configs.items() if value is not None}
        self._require_valid(ResourceType.TOPIC, name, given)
        return _difference(ResourceType.TOPIC, name, {}, given)

    def may_elect_unclean(self, topic: str) -> bool:
        """The topic's ``unclean.leader.election.enable``."""
        own = self._state.topic_config(topic)
        config = (
            self._defaults.with_overrides(own, source=f"topic {topic}") if own else self._defaults
        )
        return config.unclean_leader_election_enable

    # --- IncrementalAlterConfigs -----------------------------------------------------------------

    def incremental_alter(
        self, request: IncrementalAlterConfigsRequest
    ) -> ControllerResult[IncrementalAlterConfigsResponse]:
        """Set, delete, append to and subtract from values of topics and brokers (KIP-339)."""
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
                records += self._alter_one(resource)
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
        return ControllerResult(
            records=() if request.validate_only else tuple(records),
            response=IncrementalAlterConfigsResponse(resources=tuple(outcomes)),
        )

    def _alter_one(self, resource: AlteredResource) -> tuple[ConfigRecord, ...]:
        resource_type = self._find(resource)
        present = self._state.configs.get((resource_type, resource.name), {})
        wanted = dict(present)
        for key, count in Counter(change.name for change in resource.changes).items():
            if count > 1:
                raise _error(
                    ErrorCode.INVALID_REQUEST, f"{key} of {_name(resource)} changes twice."
                )
        for change in resource.changes:
            self._apply(change, resource_type, wanted)
        self._require_valid(resource_type, resource.name, wanted)
        return _difference(resource_type, resource.name, present, wanted)

    def _find(self, resource: AlteredResource) -> ResourceType:
        """The type of a resource that exists."""
        match resource.resource_type:
            case ResourceType.TOPIC:
                if self._state.topic(resource.name) is None:
                    raise _error(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"There is no topic '{resource.name}'.",
                    )
                return ResourceType.TOPIC
            case ResourceType.BROKER:
                self._require_broker(resource.name)
                return ResourceType.BROKER
            case _:
                raise _error(
                    ErrorCode.INVALID_REQUEST,
                    f"Resources of type {resource.resource_type} are not configured here; "
                    "topics (2) and brokers (4) are.",
                )

    def _require_broker(self, name: str) -> None:
        if not name:
            return
        if not (name.isascii() and name.isdigit() and str(int(name)) == name):
            raise _error(
                ErrorCode.INVALID_REQUEST,
                f"'{name}' is no broker id; an empty name stands for all brokers.",
            )
        if BrokerId(int(name)) not in self._state.brokers:
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
        if operation is ConfigOperation.SET:
            values[change.name] = change.value
            return
        if resource_type is not ResourceType.TOPIC or change.name not in TOPIC_LIST_KEYS:
            raise _error(
                ErrorCode.INVALID_CONFIG,
                f"{change.name} is no list, so {operation.name} does not apply to it; use SET.",
            )
        present = _items(values.get(change.name, str(self._defaults.by_key()[change.name])))
        values[change.name] = ",".join(_changed(present, operation, _items(change.value)))

    def _require_valid(
        self, resource_type: ResourceType, name: str, values: Mapping[str, str]
    ) -> None:
        """:raises OperatingError: INVALID_CONFIG, naming each key that is unknown or wrong."""
        try:
            match resource_type:
                case ResourceType.TOPIC:
                    self._defaults.with_overrides(values, source=f"topic {name}")
                case ResourceType.BROKER:
                    who = f"broker {name}" if name else "all brokers"
                    DynamicBrokerConfig.from_values(values, source=who)
                case _:
                    assert_never(resource_type)
        except ConfigError as e:
            raise _error(ErrorCode.INVALID_CONFIG, str(e)) from e


def _difference(
    resource_type: ResourceType, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[ConfigRecord, ...]:
    """Records that turn ``before`` into ``after``."""
    return tuple(
        ConfigRecord(
            resource_type=resource_type, resource_name=name, name=key, value=after.get(key)
        )
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _changed(present: list[str], operation: ConfigOperation, items: list[str]) -> list[str]:
    if operation is ConfigOperation.APPEND:
        return list(dict.fromkeys((*present, *items)))
    return [item for item in present if item not in items]


def _name(resource: AlteredResource) -> str:
    if resource.resource_type == ResourceType.BROKER:
        return f"broker '{resource.name}'"
    return f"topic '{resource.name}'"


def _error(code: ErrorCode, message: str) -> OperatingError:
    return OperatingError(message, code=code)
