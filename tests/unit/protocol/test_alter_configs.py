"""AlterConfigs translated into single changes; test_config_apis.py tests the handler."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.request_limits import MAX_FORWARDED_ITEMS
from kraftjbod.protocol.alter_configs import as_changes, named_in_parts
from kraftjbod.protocol.messages import AlterConfigsRequest

TOPIC, BROKER = 2, 4


def resource(resource_type: int, name: str, *configs: tuple[str, str | None]) -> Any:
    return AlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[AlterConfigsRequest.AlterableConfig(name=key, value=v) for key, v in configs],
    )


def test_as_changes_deletes_configs_that_are_not_named_and_sets_the_others() -> None:
    """Duplicates and null values are passed on; the controller refuses them as in single
    changes."""
    request = AlterConfigsRequest(
        resources=[
            resource(TOPIC, "t", ("a", "1"), ("a", "2"), ("b", None)),
            resource(BROKER, "t"),
        ],
        validate_only=True,
    )
    changed = as_changes(request, {(TOPIC, "t"): ["a", "c"], (TOPIC, "u"): ["d"]})
    assert changed.validate_only
    assert [
        (r.resource_type, [(c.name, c.config_operation, c.value) for c in r.configs])
        for r in changed.resources
    ] == [
        (TOPIC, [("c", 1, None), ("a", 0, "1"), ("a", 0, "2"), ("b", 0, None)]),
        (BROKER, []),
    ]


def test_named_in_parts_splits_long_lists_of_resources() -> None:
    names = [f"t{number}" for number in range(MAX_FORWARDED_ITEMS + 1)]
    request = AlterConfigsRequest(
        resources=[resource(BROKER, ""), *(resource(TOPIC, name) for name in (*names, "t" * 250))]
    )
    assert list(named_in_parts(request)) == [
        (TOPIC, tuple(names[:-1])),
        (TOPIC, (names[-1],)),
        (BROKER, ("",)),
    ]
