"""What a file may not say about consumer groups; its keys are read as all of a broker's are."""

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
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        GroupConfig(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_policy_is_read_in_any_case() -> None:
    said = GroupConfig(group_consumer_migration_policy="UPGRADE")  # type: ignore[arg-type]  # as Kafka does
    assert said.group_consumer_migration_policy == "upgrade"


def test_what_was_set_once_is_clamped_to_the_bounds_of_today() -> None:
    config = GroupConfig(group_consumer_max_heartbeat_interval_ms=90_000)
    set_once = {"consumer.session.timeout.ms": "99000", "consumer.heartbeat.interval.ms": "80000"}
    said = config.clamped_overrides(set_once)
    assert (said.consumer_session_timeout_ms, said.consumer_heartbeat_interval_ms) == (
        60_000,
        59_999,
    )


def test_what_holds_for_all_groups_is_never_out_of_bounds() -> None:
    config = GroupConfig(
        group_consumer_session_timeout_ms=60, group_consumer_heartbeat_interval_ms=20
    )
    assert config.bounds_of("consumer.session.timeout.ms") == (60, 60_000)
    assert config.clamped_overrides({}) == config.for_all_groups
