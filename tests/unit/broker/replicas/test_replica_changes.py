"""``ReplicaChanges`` is empty at first."""

from __future__ import annotations

import dataclasses

from kraftjbod.broker.replicas.replica_changes import ReplicaChanges


def test_new_replica_changes_are_empty_and_independent() -> None:
    first, second = ReplicaChanges(), ReplicaChanges()
    assert not any(getattr(first, field.name) for field in dataclasses.fields(first))
    first.unfollow.append("t-0")  # type: ignore[arg-type]  # any value will do
    assert second.unfollow == []
