"""A change of nothing leaves nothing to do."""

from __future__ import annotations

import dataclasses

from kraftjbod.broker.replicas.replica_changes import ReplicaChanges


def test_a_fresh_change_asks_for_nothing_and_shares_nothing() -> None:
    first, second = ReplicaChanges(), ReplicaChanges()
    assert not any(getattr(first, field.name) for field in dataclasses.fields(first))
    first.unfollow.append("t-0")  # type: ignore[arg-type]  # any value will do
    assert second.unfollow == []
