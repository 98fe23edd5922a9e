"""PURE. ``FreeSpacePolicy``: when a log directory counts as full, and when it has space again
(KIP-928).

* A directory is full if less than ``log.dir.min.free.bytes`` or nothing is free. With nothing free,
  a small write may still fit into allocated blocks, but the next write may not.
* An operation that fails with ENOSPC also makes a directory full. This policy does not decide that.
* A directory has space again if enough is free on :data:`CHECKS_TO_HEAL` checks in a row. Enough is
  the sum of the missing reserve, ``log.dir.min.free.bytes`` and ``log.dir.heal.free.bytes``.
* With a quota, operations can fail though the file system reports free space. Then each attempt to
  heal waits for twice as many checks, up to :data:`LONGEST_WAIT_CHECKS`.
"""

from __future__ import annotations

from typing import Final, Protocol

CHECKS_TO_HEAL: Final = 2
LONGEST_WAIT_CHECKS: Final = 64
#: With fewer free inodes no file can be created, however many bytes are free.
LEAST_FREE_INODES: Final = 16
#: Smallest margin. Without it, the space of the released reserve itself would count as healed.
LEAST_MARGIN_BYTES: Final = 1024 * 1024


class SpaceOnDisk(Protocol):
    """Size and free space as reported by a file system."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def usable_bytes(self) -> int: ...

    @property
    def free_inodes(self) -> int: ...

    @property
    def counts_inodes(self) -> bool: ...


class FreeSpacePolicy:
    """Decides when a log directory counts as full, and when it has enough free space again.

    :param reserve_bytes: size of the reserve file.
    :param min_free_bytes: with less free space the directory counts as full.
    :param heal_free_bytes: free space beyond those two for healing, at least 1 MiB. None means
        ``reserve_bytes``.
    """

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
        """Return whether less than ``min_free_bytes`` or nothing is free.

        A file system without a size limit reports a total of 0 bytes and is not full, unless
        ``min_free_bytes`` is set.
        """
        is_full = space.total_bytes > 0 and space.usable_bytes == 0
        return is_full or space.usable_bytes < self._min_free_bytes

    def is_enough(self, space: SpaceOnDisk, *, has_reserve: bool) -> bool:
        """Return whether enough bytes and inodes are free to leave the full state.

        :param has_reserve: whether the reserve file exists; if not, its size must be free too.
        """
        reserve_bytes = 0 if has_reserve else self._reserve_bytes
        needed = reserve_bytes + self._min_free_bytes + self._margin_bytes
        has_inodes = not space.counts_inodes or space.free_inodes >= LEAST_FREE_INODES
        return has_inodes and space.usable_bytes >= needed

    def may_heal(self, space: SpaceOnDisk, *, has_reserve: bool) -> bool:
        """Return whether the full directory may leave that state now, so that its reserve is
        rebuilt: enough space was free in several checks in a row.

        Call it once per check of a saturated directory.
        """
        if self._wait_checks:
            self._wait_checks -= 1
            return False
        enough = self.is_enough(space, has_reserve=has_reserve)
        self._good_checks = self._good_checks + 1 if enough else 0
        return self._good_checks >= CHECKS_TO_HEAL

    def filled_up(self, space: SpaceOnDisk | None) -> None:
        """Record that an operation found no space. If ``space`` looked sufficient, :meth:`may_heal`
        waits for more checks, twice as many each time up to a limit. Otherwise that wait ends.

        :param space: the space that the file system reported then; None if unknown.
        """
        self._good_checks = 0
        if space is None or not self.is_enough(space, has_reserve=False):
            self._contradictions = self._wait_checks = 0
            return
        self._contradictions += 1
        self._wait_checks = min(2**self._contradictions, LONGEST_WAIT_CHECKS)
