"""LOOP. ListConfigResources (KIP-1142): the configurable resources by type.

Topics and brokers are listed with or without values of their own, as in Kafka; other types only
with values. Types without configuration here, such as client metrics, give an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

Resource = ListConfigResourcesResponse.ConfigResource
#: Kafka's resource types: topics, brokers, broker loggers, client metrics, groups.
_KINDS: Final = (2, 4, 8, 16, 32)
_CLIENT_METRICS: Final = 16
#: Earlier versions list client metrics only (KIP-1000).
_ALL_KINDS_SINCE: Final = 1


class ConfigResourceApis:
    def __init__(self, *, cache: MetadataCache) -> None:
        self._cache = cache

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        known = _KINDS if context.api_version >= _ALL_KINDS_SINCE else (_CLIENT_METRICS,)
        asked = dict.fromkeys(request.resource_types or known)
        if not asked.keys() <= set(known):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = [
            Resource(resource_name=name, resource_type=kind)
            for kind in known
            if kind in asked
            async for name in in_slices(list(self._names_of(kind)))
        ]
        return ListConfigResourcesResponse(config_resources=found)

    def _names_of(self, kind: int) -> Iterable[str]:
        state = self._cache.state
        match kind:
            case ResourceType.TOPIC:
                return state.topic_ids
            case ResourceType.BROKER:
                return (str(b) for b, broker in sorted(state.brokers.items()) if not broker.fenced)
            case _:
                return (name for resource, name in state.configs if resource == kind and name)
