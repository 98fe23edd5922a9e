"""PURE. ``ReplicaIndex``: the partitions of a broker or a directory, without a full scan.

The index follows the metadata delta by delta. It matches the state if every delta is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from kraftjbod.core.ids import (
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    BrokerId,
    DirectoryId,
    TopicIdPartition,
)
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataDelta, MetadataState

_UNRESOLVED = (UNASSIGNED_DIR, MIGRATING_DIR)

Keys = dict[TopicIdPartition, None]
"""A set in order of insertion, so that decisions are the same in every run."""


M = TypeVar("M")


def _isr(partition: PartitionRegistration | None) -> tuple[BrokerId, ...]:
    return () if partition is None else partition.isr


def _directories(
    partition: PartitionRegistration | None,
) -> tuple[tuple[BrokerId, DirectoryId], ...]:
    if partition is None:
        return ()
    return tuple(zip(partition.replicas, partition.directories, strict=True))


def _has_moved(before: PartitionRegistration, after: PartitionRegistration) -> bool:
    return before.directories != after.directories or before.replicas != after.replicas


def _is_imbalanced(partition: PartitionRegistration) -> bool:
    return partition.has_leader and partition.leader != partition.preferred_leader


def _mark(keys: Keys, key: TopicIdPartition, wanted: bool) -> None:
    if wanted:
        keys[key] = None
    else:
        keys.pop(key, None)


class ReplicaIndex:
    """Indexes for finding partitions by broker, directory or condition without a scan of one
    :class:`MetadataState`. Call :meth:`apply` for each delta of that state.
    """

    def __init__(self) -> None:
        self._known: dict[TopicIdPartition, PartitionRegistration] = {}
        self._in_isr: dict[BrokerId, Keys] = {}
        self._led: dict[BrokerId, int] = {}
        self._replicas: Counter[BrokerId] = Counter()
        self._in_directory: dict[tuple[BrokerId, DirectoryId], Keys] = {}
        self._leaderless: Keys = {}
        self._imbalanced: Keys = {}
        self._reassigning: Keys = {}
        self._with_elr: Keys = {}

    # --- reading ---------------------------------------------------------------------------------

    def partitions_in_isr(self, broker_id: BrokerId) -> Collection[TopicIdPartition]:
        """Return the partitions that have the broker in their ISR, including those that it
        leads."""
        return tuple(self._in_isr.get(broker_id, ()))

    def partitions_in_directory(
        self, broker_id: BrokerId, directory_id: DirectoryId
    ) -> Collection[TopicIdPartition]:
        """Return the partitions whose replica on the broker is assigned to the directory."""
        return tuple(self._in_directory.get((broker_id, directory_id), ()))

    def led_count(self, broker_id: BrokerId) -> int:
        return self._led.get(broker_id, 0)

    def replica_count(self, broker_id: BrokerId) -> int:
        return self._replicas[broker_id]

    def has_unresolved(self, broker_id: BrokerId) -> bool:
        """Return whether the directory of any replica on the broker is UNASSIGNED or MIGRATING."""
        return any(self._in_directory.get((broker_id, directory)) for directory in _UNRESOLVED)

    @property
    def leaderless(self) -> Collection[TopicIdPartition]:
        return tuple(self._leaderless)

    @property
    def imbalanced(self) -> Collection[TopicIdPartition]:
        """Partitions with a leader that is not the preferred one."""
        return tuple(self._imbalanced)

    @property
    def reassigning(self) -> Collection[TopicIdPartition]:
        return tuple(self._reassigning)

    @property
    def with_elr(self) -> Collection[TopicIdPartition]:
        """Partitions with eligible leader replicas (ELR) or a last known ELR in the metadata
        (KIP-966).
        """
        return tuple(self._with_elr)

    @property
    def leaderless_count(self) -> int:
        return len(self._leaderless)

    @property
    def imbalanced_count(self) -> int:
        return len(self._imbalanced)

    @property
    def reassigning_count(self) -> int:
        return len(self._reassigning)

    def __len__(self) -> int:
        """Number of partitions."""
        return len(self._known)

    # --- following -------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta, state: MetadataState) -> None:
        """Apply the changes of ``delta``, which led to ``state``."""
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._update(TopicIdPartition(topic_id, index), None)
        for key in delta.partitions:
            self._update(key, state.partition(key))

    def _update(self, key: TopicIdPartition, after: PartitionRegistration | None) -> None:
        before = self._known.get(key)
        if after is None:
            self._known.pop(key, None)
        else:
            self._known[key] = after
        if before is None or after is None or before.leader != after.leader:
            self._update_leader(before, after)
        self._move(self._in_isr, key, _isr(before), _isr(after))
        if before is None or after is None or before.replicas != after.replicas:
            self._replicas.subtract(() if before is None else before.replicas)
            self._replicas.update(() if after is None else after.replicas)
        if before is None or after is None or _has_moved(before, after):
            self._move(self._in_directory, key, _directories(before), _directories(after))
        _mark(self._leaderless, key, after is not None and not after.has_leader)
        _mark(self._imbalanced, key, after is not None and _is_imbalanced(after))
        _mark(self._reassigning, key, after is not None and after.is_reassigning)
        _mark(self._with_elr, key, after is not None and bool(after.elr or after.last_known_elr))

    def _update_leader(
        self, before: PartitionRegistration | None, after: PartitionRegistration | None
    ) -> None:
        if before is not None and before.has_leader:
            self._led[before.leader] -= 1
        if after is not None and after.has_leader:
            self._led[after.leader] = self._led.get(after.leader, 0) + 1

    @staticmethod
    def _move(
        index: dict[M, Keys], key: TopicIdPartition, before: tuple[M, ...], after: tuple[M, ...]
    ) -> None:
        if before == after:
            return
        for member in before:
            if member not in after:
                del index[member][key]
                if not index[member]:
                    del index[member]
        for member in after:
            if member not in before:
                index.setdefault(member, {})[key] = None

    def check_invariants(self, state: MetadataState) -> None:
        """Assert that the indexes match a full scan of all partitions."""
        fresh = ReplicaIndex()
        for key, partition in state.partitions():
            fresh._update(key, partition)
        assert self._known == fresh._known
        assert self._in_isr == fresh._in_isr
        assert {b: n for b, n in self._led.items() if n} == fresh._led
        assert +self._replicas == fresh._replicas
        assert self._in_directory == fresh._in_directory
        assert self._leaderless == fresh._leaderless
        assert self._imbalanced == fresh._imbalanced
        assert self._reassigning == fresh._reassigning
        assert self._with_elr == fresh._with_elr
