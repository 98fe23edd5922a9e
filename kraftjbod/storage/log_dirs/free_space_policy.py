"""PURE. ``FreeSpacePolicy``: when a log dir counts as full, and when as not full any more
(KIP-928).

* It is short of space with less than ``log.dir.min.free.bytes`` free, and with nothing free at all:
  small writes may still fit into blocks that are begun, and the next one does not. (That a write
  found no space is what the operation says, and needs no plan.)
* It has space again when the reserve can be rebuilt and the minimum and
  ``log.dir.heal.free.bytes`` are free beside it, on :data:`CHECKS_TO_HEAL` checks in a row.
* Where the file system says that there is space and an operation says that there is none (a quota),
  each further attempt waits twice as many checks, up to :data:`LONGEST_WAIT_CHECKS`.
"""

from __future__ import annotations

from typing import Final, Protocol

CHECKS_TO_HEAL: Final = 2
LONGEST_WAIT_CHECKS: Final = 64
#: With fewer free inodes nothing can be made, however much space there is.
LEAST_FREE_INODES: Final = 16
#: The smallest margin. With none, a full disk that gave its reserve away would have space for it.
LEAST_MARGIN_BYTES: Final = 1024 * 1024


class SpaceOnDisk(Protocol):
    """What a file system says of itself."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def usable_bytes(self) -> int: ...

    @property
    def free_inodes(self) -> int: ...

    @property
    def counts_inodes(self) -> bool: ...


class FreeSpacePolicy:
    """Of one log dir. ``heal_free_bytes`` None: as many as the reserve has, and 1 MiB at least."""

    def __init__(
        self, *, reserve_bytes: int = 0, min_free_bytes: int = 0, heal_free_bytes: int | None = None
    ) -> None:
        self._reserve_bytes = reserve_bytes
        self._min_free_bytes = min_free_bytes
        margin = reserve_bytes if heal_free_bytes is None else heal_free_bytes
        self._margin_bytes = max(margin, LEAST_MARGIN_BYTES)
        self._good_checks = 0
        self._contradictions = 0
        self._wait_checks = 0

    def is_short(self, space: SpaceOnDisk) -> bool:
        """Fewer free bytes than the operator wants, or none.

        A file system that knows no limits says that it has 0 bytes in all.
        """
        is_full = space.total_bytes > 0 and space.usable_bytes == 0
        return is_full or space.usable_bytes < self._min_free_bytes

    def is_enough(self, space: SpaceOnDisk, *, has_reserve: bool) -> bool:
        """The figures speak for healing."""
        reserve_bytes = 0 if has_reserve else self._reserve_bytes
        needed = reserve_bytes + self._min_free_bytes + self._margin_bytes
        has_inodes = not space.counts_inodes or space.free_inodes >= LEAST_FREE_INODES
        return has_inodes and space.usable_bytes >= needed

    def may_heal(self, space: SpaceOnDisk, *, has_reserve: bool) -> bool:
        """Asked once per check of a saturated dir: whether to rebuild the reserve now."""
        if self._wait_checks:
            self._wait_checks -= 1
            return False
        enough = self.is_enough(space, has_reserve=has_reserve)
        self._good_checks = self._good_checks + 1 if enough else 0
        return self._good_checks >= CHECKS_TO_HEAL

    def filled_up(self, space: SpaceOnDisk | None) -> None:
        """An operation found no space; ``space`` is what the file system said just then."""
        self._good_checks = 0
        if space is None or not self.is_enough(space, has_reserve=False):
            self._contradictions = self._wait_checks = 0
            return
        self._contradictions += 1
        self._wait_checks = min(2**self._contradictions, LONGEST_WAIT_CHECKS)
