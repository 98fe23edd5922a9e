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
