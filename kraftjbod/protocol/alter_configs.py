"""PURE. Converts AlterConfigs, which replaces all overrides of a resource, to incremental changes.

Overrides that the request does not name are removed (KIP-133). Kafka replaced this request by
IncrementalAlterConfigs in version 2.3, but some clients support only AlterConfigs.
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
    """Yield a resource type and names of its resources, in lists short enough for one forwarded
    request.

    Duplicate names are merged. Names that are too long to exist, and resources of the request
    beyond the first 10,000, are omitted.
    """
    first = request.resources[:MAX_ITEMS_PER_REQUEST]
    for kind in sorted({resource.resource_type for resource in first}):
        names = dict.fromkeys(r.resource_name for r in first if r.resource_type == kind)
        # A longer name cannot exist.
        fitting = [name for name in names if len(name) <= MAX_NAME_CHARS]
        for start in range(0, len(fitting), MAX_FORWARDED_ITEMS):
            yield kind, tuple(fitting[start : start + MAX_FORWARDED_ITEMS])


def as_changes(
    request: AlterConfigsRequest, present: Mapping[tuple[int, str], Collection[str]]
) -> IncrementalAlterConfigsRequest:
    """Return ``request`` as incremental changes. Overrides that it does not name are deleted.

    :param present: keys that currently have an override, by type and name of the resource.
    """
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
    """Yield the changes of one resource: a DELETE per override that is not named, then the SETs.

    Keys without a value and duplicate keys are kept, and the controller rejects them as Kafka does.
    """
    named = {canonical_key(config.name) for config in resource.configs}
    for name in dict.fromkeys(present):
        if name not in named:
            yield _Change(name=name, config_operation=_DELETE, value=None)
    for config in resource.configs:
        yield _Change(name=config.name, config_operation=_SET, value=config.value)


def to_alter_configs_response(response: IncrementalAlterConfigsResponse) -> AlterConfigsResponse:
    """Return the results of ``response`` as an AlterConfigs response, with a throttle time of 0."""
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


def refuse_alter_configs(
    request: AlterConfigsRequest, error: OperatingError
) -> AlterConfigsResponse:
    """Return a response that rejects every resource of ``request`` with ``error``."""
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
