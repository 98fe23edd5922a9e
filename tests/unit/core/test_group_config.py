"""``GroupConfig``: values of consumer group keys that are refused or clamped."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kraftjbod.core.group_config import GroupConfig


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"group_max_session_timeout_ms": 5_000}, "is below group.min.session.timeout.ms"),
        ({"group_consumer_heartbeat_interval_ms": 45_000}, "must be below"),
        (
            {"group_consumer_min_session_timeout_ms": 60_001},
            "group.consumer.min.session.timeout.ms is above",
        ),
        ({"group_consumer_assignors": ("range", "range")}, "each assignor once"),
        ({"group_consumer_assignors": ()}, "each assignor once"),
        ({"group_consumer_migration_policy": "sometimes"}, "bidirectional"),
    ],
)
def test_group_config_rejects_inconsistent_values(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        GroupConfig(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_migration_policy_is_case_insensitive() -> None:
    said = GroupConfig(group_consumer_migration_policy="UPGRADE")  # type: ignore[arg-type]  # text, as in a file
    assert said.group_consumer_migration_policy == "upgrade"


def test_clamped_overrides_apply_current_bounds_to_stored_values() -> None:
    config = GroupConfig(group_consumer_max_heartbeat_interval_ms=90_000)
    set_once = {"consumer.session.timeout.ms": "99000", "consumer.heartbeat.interval.ms": "80000"}
    said = config.clamped_overrides(set_once)
    assert (said.consumer_session_timeout_ms, said.consumer_heartbeat_interval_ms) == (
        60_000,
        59_999,
    )


def test_clamped_overrides_ignore_stored_text_that_is_no_number() -> None:
    """Another version may have written such text; it ended each heartbeat of the group."""
    stored = {"consumer.session.timeout.ms": "soon", "consumer.heartbeat.interval.ms": "6000"}
    said = GroupConfig().clamped_overrides(stored)
    assert (said.consumer_session_timeout_ms, said.consumer_heartbeat_interval_ms) == (
        45_000,
        6_000,
    )


def test_group_defaults_are_within_their_own_bounds() -> None:
    config = GroupConfig(
        group_consumer_session_timeout_ms=60, group_consumer_heartbeat_interval_ms=20
    )
    assert config.bounds_of("consumer.session.timeout.ms") == (60, 60_000)
    assert config.clamped_overrides({}) == config.for_all_groups
