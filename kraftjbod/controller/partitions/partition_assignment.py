"""PURE. ``Assignment``: the replicas of a partition, and those being added or removed (KIP-455).

A reassignment to ``target`` keeps every former replica until the added ones are in sync. Meanwhile
the replicas are those of the target, in its order, followed by those to be removed.

* The *original* replicas are those from before any unfinished reassignment. A new target is
  compared with them. So a cancel restores them, however often the target changed meanwhile. An
  added replica that the new target does not name is removed at once.
* A reassignment is complete when every added replica is in sync. If it makes the partition smaller,
  all remaining replicas must be in sync, so that no copy is dropped in favour of a lagging one.

Elections are not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.metadata.registrations import PartitionRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The replicas of a partition, including those that a reassignment adds or removes (KIP-455).

    ``directories`` has the directory of each replica, in the same order. ``adding`` and
    ``removing`` are subsets of ``replicas``; both are empty without a reassignment.
    """

    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @classmethod
    def of_partition(cls, partition: PartitionRegistration) -> Assignment:
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
        """The replicas that remain if the reassignment is cancelled."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas that remain when the reassignment is complete."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def directory_of(self, replica: BrokerId) -> DirectoryId:
        return self.directories[self.replicas.index(replica)]

    def with_directory(self, replica: BrokerId, directory_id: DirectoryId) -> Assignment:
        """Return this assignment with ``replica`` in another directory."""
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
        """Return the assignment while a reassignment to ``target`` is in progress: ``target`` in
        its order, followed by the replicas to remove.

        :param directory_of: returns the directory of a replica in ``target``.
        """
        removing = tuple(sorted(set(self.original).difference(target)))
        return Assignment(
            replicas=(*target, *removing),
            directories=(*map(directory_of, target), *map(self.directory_of, removing)),
            adding=tuple(sorted(set(target).difference(self.original))),
            removing=removing,
        )

    def cancelled(self) -> Assignment:
        """Return the assignment after a cancel: the original replicas."""
        return self._only(self.original)

    def is_complete(self, isr: Collection[BrokerId]) -> bool:
        """Return whether a reassignment is complete with the in-sync replicas ``isr``. False
        without a reassignment."""
        if not self.is_reassigning:
            return False
        target = self.target
        awaited = target if len(target) < len(self.original) else self.adding
        return set(awaited) <= set(isr)

    def min_isr(self, configured: int) -> int:
        """Return the number of in-sync replicas that a commit needs: ``configured``, but at most
        the number of replicas before or after the reassignment, whichever is smaller.

        :param configured: ``min.insync.replicas``.
        """
        return min(configured, len(self.replicas) - max(len(self.adding), len(self.removing)))

    def completed(self) -> Assignment:
        """Return the assignment after the completion: the target replicas."""
        return self._only(self.target)

    def _only(self, replicas: tuple[BrokerId, ...]) -> Assignment:
        return Assignment(replicas=replicas, directories=tuple(map(self.directory_of, replicas)))


def why_malformed(replicas: Sequence[BrokerId]) -> str | None:
    """Return an error message for a malformed list of replicas; None if it is well-formed."""
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    if min(replicas) < 0:
        return f"The manual partition assignment includes the invalid broker id {min(replicas)}."
    if len(set(replicas)) != len(replicas):
        return f"The manual partition assignment {list(replicas)} names a broker twice."
    return None
