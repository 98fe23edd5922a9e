"""LOOP. ``LogSpace``: how much free space the metadata log has left, and who may still use it.

While the metadata dir is SATURATED (KIP-928) the log lives on the space of the released reserve:

* what makes the metadata grow for good is refused, so that the space lasts long for all else;
* once no more than a last margin is left, or an entry waits for space, everything is refused;
* a refusal comes before anything is proposed, so that nothing is replayed that is not written.

Free is what the file system said at the last check of the dir, and the reserve as long as it is
held, less what was proposed since.
"""

from __future__ import annotations

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.vfs import Space


class LogSpace:
    """Of one metadata dir. All methods are for the loop's thread."""

    def __init__(self, *, log_dir: LogDir, last_bytes: int) -> None:
        """
        :param last_bytes: the last margin; it lets a controller start again on a full disk.
        """
        self._log_dir = log_dir
        self._last_bytes = last_bytes
        #: An entry that was proposed finds no free space.
        self.is_waiting = False
        self._space: Space = log_dir.space
        #: What was known when the dir filled up: it is from before the reserve was released.
        self._space_when_full: Space | None = None
        #: Proposed and not written yet.
        self._pending_bytes = 0
        #: What ``_space`` does not know of.
        self._used_bytes = 0

    @property
    def left_bytes(self) -> int | None:
        """Beside the last margin; None if the file system was not asked yet, or not since."""
        self._sample()
        if not self._space.total_bytes or self._space is self._space_when_full:
            return None
        free_bytes = self._space.usable_bytes + self._log_dir.reserve_bytes
        return free_bytes - self._used_bytes - self._last_bytes

    def has(self, size_bytes: int) -> bool:
        """Whether there is space for this and the last margin, as far as is known."""
        left_bytes = self.left_bytes
        return left_bytes is None or left_bytes >= size_bytes

    def require(self, size_bytes: int, *, grows: bool) -> None:
        """Pass if an entry of this size may be proposed now.

        :param grows: whether it makes the metadata grow for good.
        :raises LogDirImpairedError: which disk is full, and how much of it is free.
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
        """What was proposed may be written, or never: the next sample of the disk knows."""
        self._pending_bytes = 0

    def note_no_space(self) -> None:
        """A write found none: what was said then is no more so once some is made."""
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
