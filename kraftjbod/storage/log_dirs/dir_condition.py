"""LOOP. ``DirCondition``: path, id and state of a log directory, the reason of the state, and the
errors that the state causes.

The state changes by the table of ``core/log_dir_state.py``, and each change is logged.
``log_dir.py`` acts on the changes.
"""

from __future__ import annotations

from typing import Final, assert_never

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.log_dir_state import LogDirEvent, LogDirState, next_state
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind, is_allowed
from kraftjbod.storage.vfs import Space

NO_SPACE_KNOWN: Final = Space(total_bytes=0, usable_bytes=0, free_inodes=0)


class DirCondition:
    """Path, id and state of a log directory, the reason of the state, and the errors for its
    callers. Base class of ``LogDir``, without access to the disk.
    """

    def __init__(self, path: str, directory_id: DirectoryId, since_wall_ms: int = 0) -> None:
        self.path = path
        #: Wall clock time of the creation in ms. A reattached directory is a new object.
        self.since_wall_ms = since_wall_ms
        #: LOST_DIR until the directory is identified, and if its id is not known.
        self.directory_id = directory_id
        self.state = LogDirState.ONLINE
        #: Why the dir is OFFLINE; empty while it is not.
        self.offline_reason = ""
        #: Why the dir is impaired; empty while it is not.
        self.impaired_reason = ""
        #: The directory was opened at run time, and its failures are not reported yet.
        self.is_on_trial = False
        #: Result of the last check; zeros before the first.
        self.space = NO_SPACE_KNOWN
        #: Logger that names the directory.
        self.log = get_logger(log_dir=path)

    @property
    def is_online(self) -> bool:
        """Whether the state is not OFFLINE. An impaired directory is online."""
        return self.state is not LogDirState.OFFLINE

    @property
    def is_impaired(self) -> bool:
        return self.state.is_impaired

    def require_allowed(self, kind: OpKind) -> None:
        """Raise an error if the state forbids operations of ``kind``.

        :raises KafkaStorageError: the directory is offline.
        :raises LogDirImpairedError: the directory is saturated or stalled, and rejects ``kind``
            (``log_dir_policy.is_allowed``).
        """
        if not is_allowed(self.state, kind):
            raise self.impaired_error() if self.is_online else self.offline_error()

    def impaired_error(self) -> LogDirImpairedError:
        return self._impaired_error(self.state, self.impaired_reason)

    def saturated_error(self, reason: str) -> LogDirImpairedError:
        """Return the error for operations that are refused after another one got ENOSPC, before
        the state is SATURATED.
        """
        return self._impaired_error(LogDirState.SATURATED, reason)

    def offline_error(self) -> KafkaStorageError:
        return KafkaStorageError(
            f"log dir {self.path} is offline: {self.offline_reason}",
            directory_id=self.directory_id,
            path=self.path,
        )

    def _impaired_error(self, state: LogDirState, reason: str) -> LogDirImpairedError:
        return LogDirImpairedError(
            f"log dir {self.path} is {state.value}: {reason}",
            directory_id=self.directory_id,
            path=self.path,
            state=state.value,
        )

    def step(self, event: LogDirEvent, reason: str, **failed: str) -> bool:
        """Apply ``event`` to the state and log the change. Return False if the state does not
        change.

        :param reason: text for log events and errors.
        :param failed: further fields of the log event: ``operation`` and ``replica``.
        """
        after = next_state(self.state, event)
        if after is self.state:
            return False
        self.state = after
        self.impaired_reason = reason if after.is_impaired else ""
        self.offline_reason = "" if self.is_online else reason
        self._log_change(event, reason, failed)
        return True

    def event_fields(self, reason: str) -> dict[str, str | int]:
        """Return the fields of a log event about the directory, without its path."""
        return {
            "directory_id": str(self.directory_id),
            "reason": reason,
            "free_bytes": self.space.usable_bytes,
            "free_inodes": self.space.free_inodes,
        }

    def _log_change(self, event: LogDirEvent, reason: str, failed: dict[str, str]) -> None:
        fields = self.event_fields(reason) | failed
        match event:
            case LogDirEvent.FILLED_UP:
                self.log.warning("log_dir_saturated", **fields)
            case LogDirEvent.HAS_SPACE:
                self.log.info("log_dir_has_space_again", **fields)
            case LogDirEvent.SUSPECTED:
                self.log.warning("log_dir_stalled", **fields)
            case LogDirEvent.ANSWERED | LogDirEvent.ANSWERED_FULL:
                state = self.state.value
                self.log.info("log_dir_answers_again", **fields, state=state)
            case LogDirEvent.FAILED if self.is_on_trial:
                self.log.info("log_dir_not_opened", **fields)
            case LogDirEvent.FAILED:
                self.log.error("log_dir_offline", **fields)
            case LogDirEvent.REATTACHED:
                raise AssertionError("a dir that comes back is another object")
            case _:
                assert_never(event)
