"""WIRE. Requests about configuration: of topics, groups, brokers and all brokers.

Each function turns error codes into :class:`OperatingError`. Callers repeat failed requests by
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
    """Type of a resource that can be configured, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigResource(NamedTuple):
    """A topic or group by name, or a broker by id; an empty name means all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(all)'}"


class ConfigSource(IntEnum):
    """Source of a configuration value, with Kafka's numbers."""

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
    """A source that sets a value, and its value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """The value in use for one key; ``value`` is None if it is not set or is sensitive.

    ``synonyms`` are all sources that set a value, the one in use first.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    is_sensitive: bool = False


class ConfigOperation(IntEnum):
    """Operation of a change (KIP-339). APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change of one key of a resource; ``value`` is None for DELETE."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


async def describe_configs(
    client: ClusterClient, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """Return every value in use of each resource, by key.

    Each broker describes itself, so the client's metadata must include it.

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
    """Return the names of the resources of a kind, sorted (KIP-1142).

    Only groups with a configuration are listed.

    :raises OperatingError: the broker does not know the kind.
    """
    request = ListConfigResourcesRequest(resource_types=[kind])
    response = await client.request_from_any_broker(request, min_version=1)
    require_ok(response, f"resources of kind {kind.name.lower()}")
    return sorted(each.resource_name for each in response.config_resources)


def own_configs(
    described: Mapping[ConfigResource, Mapping[str, ConfigEntry]],
) -> dict[str, dict[str, str | None]]:
    """Return the values that are set on each topic, by topic and key, without defaults."""
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
    """Change single values, and leave all others (KIP-339).

    The changes of one resource are applied together or not at all. On an error, other resources may
    have changed.

    :raises OperatingError: INVALID_CONFIG and others, of the first resource that was refused.
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

    # Any broker can forward changes for a broker that is down.
    grouped = _by_broker(changes, among=client.metadata.brokers)
    for response in await _ask_each(client, grouped, body):
        for result in response.responses:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            require_ok(result, str(resource))


def _by_broker(
    resources: Iterable[ConfigResource], among: Collection[int] | None = None
) -> dict[int | None, list[ConfigResource]]:
    """Group the resources by the broker to which their request is sent; None means any broker.

    A Kafka broker describes only itself.

    :param among: ids of the running brokers. A request about another broker may go to any broker.
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
            client.request_from_any_broker(body(own))
            if node_id is None
            else client.request(node_id, body(own))
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
