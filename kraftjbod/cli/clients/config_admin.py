"""WIRE. Questions and orders about configuration: of topics, of brokers and of all brokers.

Each turns error codes into :class:`OperatingError` and leaves trying again to
:meth:`ClusterClient.retry`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

from kraftjbod.cli.clients.cluster_admin import require_ok
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.protocol.kafka_codec import Request
from kraftjbod.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

R = TypeVar("R")


class ResourceType(IntEnum):
    """What can be configured; Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigResource(NamedTuple):
    """One topic or group by its name, one broker by its id, or all brokers by the empty name."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(all)'}"


class ConfigSource(IntEnum):
    """Where a value comes from; Kafka's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigSynonym(NamedTuple):
    """A place that could set a value, and what it says."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One value in force; ``value`` is None where it is not set, or secret.

    ``synonyms`` holds every place that sets it, the winning one first.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    is_sensitive: bool = False


class ConfigOperation(IntEnum):
    """How one value changes (KIP-339); the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One key of one resource."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


async def describe_configs(
    client: ClusterClient, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """Every value in force of each resource, by key.

    A broker is asked itself, so the client's metadata must know it.

    :raises OperatingError: UNKNOWN_TOPIC_OR_PARTITION and others, naming the resource.
    """

    def body(own: Sequence[ConfigResource]) -> DescribeConfigsRequest:
        wanted = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource.type, resource_name=resource.name, configuration_keys=None
            )
            for resource in own
        ]
        return DescribeConfigsRequest(resources=wanted, include_synonyms=True)

    described = {}
    for response in await _ask_each(client, _by_broker(resources), body):
        for result in response.results:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            require_ok(result, str(resource))
            described[resource] = {entry.name: _config_entry(entry) for entry in result.configs}
    return described


async def list_config_resources(client: ClusterClient, kind: ResourceType) -> list[str]:
    """Names of a kind that there is something to be said of (KIP-1142); of groups, those that have
    a configuration of their own.

    :raises OperatingError: the broker does not know the kind.
    """
    request = ListConfigResourcesRequest(resource_types=[kind])
    response = await client.request_any(request, min_version=1)
    require_ok(response, f"resources of kind {kind.name.lower()}")
    return sorted(each.resource_name for each in response.config_resources)


def own_configs(
    described: Mapping[ConfigResource, Mapping[str, ConfigEntry]],
) -> dict[str, dict[str, str | None]]:
    """By topic, what of all that is in force it says itself."""
    return {
        resource.name: {
            entry.name: entry.value
            for entry in entries.values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, entries in described.items()
    }


async def incremental_alter_configs(
    client: ClusterClient,
    changes: Mapping[ConfigResource, Sequence[ConfigChange]],
    *,
    validate_only: bool = False,
) -> None:
    """Change single values and leave all others as they are (KIP-339).

    Each resource changes as a whole or not at all; others may have changed when this raises.

    :raises OperatingError: INVALID_CONFIG and others, for the first resource refused.
    """

    def body(own: Sequence[ConfigResource]) -> IncrementalAlterConfigsRequest:
        wanted = [
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=name, config_operation=operation, value=value
                    )
                    for name, value, operation in changes[resource]
                ],
            )
            for resource in own
        ]
        return IncrementalAlterConfigsRequest(resources=wanted, validate_only=validate_only)

    # A broker that is down can be configured through any other.
    grouped = _by_broker(changes, among=client.metadata.brokers)
    for response in await _ask_each(client, grouped, body):
        for result in response.responses:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            require_ok(result, str(resource))


def _by_broker(
    resources: Iterable[ConfigResource], among: Collection[int] | None = None
) -> dict[int | None, list[ConfigResource]]:
    """The resources by whom to ask about them; None stands for any broker.

    Kafka's brokers answer about themselves only.
    """
    grouped: dict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        node_id = None
        if resource.type is ResourceType.BROKER and resource.name:
            node_id = int(resource.name)
            if among is not None and node_id not in among:
                node_id = None
        grouped[node_id].append(resource)
    return grouped


async def _ask_each(
    client: ClusterClient,
    grouped: Mapping[int | None, Sequence[ConfigResource]],
    body: Callable[[Sequence[ConfigResource]], Request[R]],
) -> list[R]:
    return await asyncio.gather(
        *(
            client.request_any(body(own)) if node_id is None else client.request(node_id, body(own))
            for node_id, own in grouped.items()
        )
    )


def _config_entry(entry: DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(entry.config_source),
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(
            ConfigSynonym(s.name, s.value, ConfigSource(s.source)) for s in entry.synonyms
        ),
    )
