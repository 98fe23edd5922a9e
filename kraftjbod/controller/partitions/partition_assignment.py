"""PURE. ``Assignment``: who holds a partition, where, and who is on the way in or out (KIP-455).

A reassignment to ``target`` keeps every replica that the partition had before it until the added
ones are in sync: the replicas are the target in its order, and after it those that will leave.

* The *original* replicas are those that were there before any reassignment that is still under
  way. A new target is measured against them, so a cancel leads back to them, however often the
  target changed meanwhile; an added replica that the new target does not name goes at once.
* A reassignment is complete when every added replica is in sync. One that makes the partition
  smaller waits for all that stay, so that it never drops a copy in favour of one that lags.

Elections are not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.metadata.registrations import PartitionRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``directories`` runs parallel to ``replicas``; both of the rest are parts of it."""

    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @classmethod
    def of(cls, partition: PartitionRegistration) -> Assignment:
        return cls(
            replicas=partition.replicas,
            directories=partition.directories,
            adding=partition.adding_replicas,
            removing=partition.removing_replicas,
        )

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def original(self) -> tuple[BrokerId, ...]:
        """The replicas that a cancel leads back to."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas that a completion leads to."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def directory_of(self, replica: BrokerId) -> DirectoryId:
        return self.directories[self.replicas.index(replica)]

    def with_directory(self, replica: BrokerId, directory_id: DirectoryId) -> Assignment:
        """The same replicas, one of them in another directory."""
        homes = dict(zip(self.replicas, self.directories, strict=True))
        homes[replica] = directory_id
        return Assignment(
            replicas=self.replicas,
            directories=tuple(homes.values()),
            adding=self.adding,
            removing=self.removing,
        )

    def reassigned_to(
        self, target: Sequence[BrokerId], directory_of: Callable[[BrokerId], DirectoryId]
    ) -> Assignment:
        """On the way to ``target``, each of whose replicas is in the directory that is given."""
        removing = tuple(sorted(set(self.original).difference(target)))
        return Assignment(
            replicas=(*target, *removing),
            directories=(*map(directory_of, target), *map(self.directory_of, removing)),
            adding=tuple(sorted(set(target).difference(self.original))),
            removing=removing,
        )

    def cancelled(self) -> Assignment:
        """Back to the original replicas."""
        return self._only(self.original)

    def is_complete(self, isr: Collection[BrokerId]) -> bool:
        """Whether this in-sync set lets the removed replicas go."""
        if not self.is_reassigning:
            return False
        target = self.target
        awaited = target if len(target) < len(self.original) else self.adding
        return set(awaited) <= set(isr)

    def min_isr(self, configured: int) -> int:
        """How many in-sync replicas it takes to commit, where ``min.insync.replicas`` is this."""
        return min(configured, len(self.replicas) - max(len(self.adding), len(self.removing)))

    def completed(self) -> Assignment:
        """The target alone."""
        return self._only(self.target)

    def _only(self, replicas: tuple[BrokerId, ...]) -> Assignment:
        return Assignment(replicas=replicas, directories=tuple(map(self.directory_of, replicas)))


def why_malformed(replicas: Sequence[BrokerId]) -> str | None:
    """What is wrong with a list of replicas whatever brokers there are; None if it is sound."""
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    if min(replicas) < 0:
        return f"The manual partition assignment includes the invalid broker id {min(replicas)}."
    if len(set(replicas)) != len(replicas):
        return f"The manual partition assignment {list(replicas)} names a broker twice."
    return None
