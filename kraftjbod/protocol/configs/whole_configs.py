"""PURE. AlterConfigs: all that is configured of a resource at once, told as single changes.

What the resource has and the request does not name is removed (KIP-133). Kafka has had a better
way since 2.3, IncrementalAlterConfigs; some clients still know this one alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.kafka_keys import canonical_key
from kraftjbod.core.request_limits import MAX_FORWARDED_ITEMS, MAX_ITEMS_PER_REQUEST
from kraftjbod.core.text.topic_name import MAX_NAME_CHARS
from kraftjbod.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_Change = IncrementalAlterConfigsRequest.AlterableConfig
_SET, _DELETE = 0, 1


def named_in_parts(request: AlterConfigsRequest) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Resources that may be there, by type, as many at a time as are forwarded at once."""
    first = request.resources[:MAX_ITEMS_PER_REQUEST]
    for kind in sorted({resource.resource_type for resource in first}):
        names = dict.fromkeys(r.resource_name for r in first if r.resource_type == kind)
        # What is longer names nothing that is there.
        fitting = [name for name in names if len(name) <= MAX_NAME_CHARS]
        for start in range(0, len(fitting), MAX_FORWARDED_ITEMS):
            yield kind, tuple(fitting[start : start + MAX_FORWARDED_ITEMS])


def as_changes(
    request: AlterConfigsRequest, present: Mapping[tuple[int, str], Collection[str]]
) -> IncrementalAlterConfigsRequest:
    """:param present: keys that have a value of their own, by type and name of the resource."""
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=list(
                    _changes(
                        resource, present.get((resource.resource_type, resource.resource_name), ())
                    )
                ),
            )
            for resource in request.resources
        ],
        validate_only=request.validate_only,
    )


def _changes(
    resource: AlterConfigsRequest.AlterConfigsResource, present: Collection[str]
) -> Iterator[_Change]:
    """What is named without a value, or twice, is for the controller to refuse, as Kafka does."""
    named = {canonical_key(config.name) for config in resource.configs}
    for name in dict.fromkeys(present):
        if name not in named:
            yield _Change(name=name, config_operation=_DELETE, value=None)
    for config in resource.configs:
        yield _Change(name=config.name, config_operation=_SET, value=config.value)


def whole_response(response: IncrementalAlterConfigsResponse) -> AlterConfigsResponse:
    """The same outcomes; :attr:`throttle_time_ms` is nobody's here."""
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=outcome.error_code,
                error_message=outcome.error_message,
                resource_type=outcome.resource_type,
                resource_name=outcome.resource_name,
            )
            for outcome in response.responses
        ]
    )


def refused_whole(request: AlterConfigsRequest, error: OperatingError) -> AlterConfigsResponse:
    """Every resource refused for the same reason."""
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )
