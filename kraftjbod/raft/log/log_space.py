"""LOOP. ``LogSpace``: the free space for the metadata log, and which proposals may use it.

While the metadata directory is SATURATED (KIP-928) the log uses the space of the released reserve:

* Entries that make the metadata grow permanently are refused, so that the space lasts for others.
* If only a last margin is left, or an entry waits for space, all entries are refused.
* An entry is refused before it is proposed, so that no unwritten entry is replayed.

Free space is the one of the last check of the directory, plus the reserve while it is held, minus
the size of later proposals.
"""

from __future__ import annotations

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.vfs import Space


class LogSpace:
    """Tracks the free space for the metadata log, and decides which proposals are accepted while
    its disk is full.

    All methods must be called in the event loop's thread.
    """

    def __init__(self, *, log_dir: LogDir, last_bytes: int) -> None:
        """Create with the space of the directory's last check.

        :param last_bytes: the last margin, which lets a controller start again on a full disk.
        """
        self._log_dir = log_dir
        self._last_bytes = last_bytes
        #: Whether a proposed entry finds no free space.
        self.is_waiting = False
        self._space: Space = log_dir.space
        #: The sample at the time when the dir filled up, before the reserve was released.
        self._space_when_full: Space | None = None
        #: Size of the entries that were proposed and are not written yet.
        self._pending_bytes = 0
        #: Size of the entries that are not included in ``_space``.
        self._used_bytes = 0

    @property
    def left_bytes(self) -> int | None:
        """Free bytes besides the last margin; None if no check of the disk is recent enough."""
        self._sample()
        if not self._space.total_bytes or self._space is self._space_when_full:
            return None
        free_bytes = self._space.usable_bytes + self._log_dir.reserve_bytes
        return free_bytes - self._used_bytes - self._last_bytes

    def has(self, size_bytes: int) -> bool:
        """Return whether there is space for ``size_bytes`` and the last margin, or the space is
        unknown.
        """
        left_bytes = self.left_bytes
        return left_bytes is None or left_bytes >= size_bytes

    def require(self, size_bytes: int, *, grows: bool) -> None:
        """Raise an error unless an entry of ``size_bytes`` may be proposed now.

        :param grows: whether the entry makes the metadata grow permanently.
        :raises LogDirImpairedError: it may not; the message names the disk and its free space.
        """
        self._sample()
        if self._log_dir.state is not LogDirState.SATURATED:
            return
        if grows:
            raise self._error("Nothing that makes the metadata grow is taken")
        if self.is_waiting or not self.has(size_bytes):
            raise self._error("Nothing that has to be written is taken")

    def note_proposed(self, size_bytes: int) -> None:
        self._sample()
        self._pending_bytes += size_bytes
        self._used_bytes += size_bytes

    def note_written(self, size_bytes: int) -> None:
        self._sample()
        self._pending_bytes -= size_bytes

    def forget_pending(self) -> None:
        """Forget pending proposals, which may never be written.

        Until the next check of the disk, their size still counts as used.
        """
        self._pending_bytes = 0

    def note_no_space(self) -> None:
        """Record that a write found no space.

        While the directory stays SATURATED, the free space counts as unknown until its next check.
        """
        self._sample()
        self._space_when_full = self._space

    def _sample(self) -> None:
        if self._log_dir.space is not self._space:
            self._space = self._log_dir.space
            self._used_bytes = self._pending_bytes
        if self._log_dir.state is not LogDirState.SATURATED:
            self._space_when_full = None
        elif self._space_when_full is None:
            self._space_when_full = self._space

    def _error(self, refused: str) -> LogDirImpairedError:
        log_dir = self._log_dir
        return LogDirImpairedError(
            f"{refused} while the disk under metadata.log.dir {log_dir.path} is full "
            f"({self._space.usable_bytes} bytes free); free some space there and try again.",
            directory_id=log_dir.directory_id,
            path=log_dir.path,
            state=log_dir.state.value,
        )
