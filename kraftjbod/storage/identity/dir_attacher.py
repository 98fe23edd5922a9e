"""LOOP. ``DirAttacher``: opens log directories while the node runs, reattached or new ones.

* The rules are those of a start (dir_opener.py). The directory is a new object with its own threads
  and files. Other code uses it only after it was taken into service.
* A directory is not reopened while an operation on the old object still runs, because a late write
  could damage the new one. The old object must also have released its files.
* The ids of directories are stored in the metadata directory, one change at a time.
* A new directory must be below one of the allowed roots, with symbolic links resolved. All rejected
  paths get the same answer, which does not reveal what exists there. Log events have the reason.

dir_arrivals.py handles the replicas in the directory. The caller notifies other components.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    LogDirImpairedError,
    OperatingError,
    StartupError,
)
from kraftjbod.core.ids import LOST_DIR, BrokerId, DirectoryId
from kraftjbod.core.loop.own_time import wait_awake
from kraftjbod.core.node_config import is_below
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import KNOWN_LOG_DIRS, RESERVE_FILE
from kraftjbod.storage.identity.dir_examination import Examination, examine, give_id
from kraftjbod.storage.identity.dir_identity import Found, Refused, Unnamed, identify
from kraftjbod.storage.identity.known_dirs import KnownDirs, parse_known_dirs, write_known_dirs
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

#: Content of an empty file system after ``mkfs``, and the reserve.
_NO_CONTENT = frozenset({"lost+found", RESERVE_FILE})


class DirAttacher:
    """Opens log directories while the node runs: returning ones and new ones. Also changes
    ``known-log-dirs.json``, which has their ids. All methods run on the event loop.

    :param make_log_dir: creates the ``LogDir`` for a path.
    :param timeout_ms: limit for the examination of a directory.
    """

    def __init__(
        self,
        *,
        metadata_dir: LogDir,
        cluster_id: str,
        node_id: BrokerId,
        make_log_dir: Callable[[str], LogDir],
        random_bytes: Callable[[int], bytes],
        timeout_ms: int,
        allowed_roots: Sequence[str],
    ) -> None:
        self._metadata = metadata_dir
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._make_log_dir = make_log_dir
        self._random_bytes = random_bytes
        self._timeout_ms = timeout_ms
        self._allowed_roots = allowed_roots
        #: Objects of failed attempts by path. Their threads may still hang.
        self._failed: dict[str, LogDir] = {}
        self._remembering = asyncio.Lock()

    # -- opening ----------------------------------------------------------------------------

    async def reopen(self, dead: LogDir) -> LogDir:
        """Reopen the directory of ``dead``, which is OFFLINE, as a new object.

        The new object is on trial, locked, identified and watched. It has its reserve, or is
        SATURATED. The caller takes it into service or calls :meth:`dismiss`.

        :raises OperatingError: the directory cannot be used. The message says what to do.
        """
        for old in (dead, self._failed.get(dead.path)):
            if old is not None and await _hangs(old):
                raise KafkaStorageError(
                    f"{dead.path} still hangs: an operation from before is running; it can come "
                    f"back when that has ended, or with the next start of the broker",
                    path=dead.path,
                )
        log_dir = self._begin(dead.path)
        log_dir.is_cordoned = dead.is_cordoned
        try:
            answer = await self._examine(log_dir)
            known = await self._read_known()
            expected = None if dead.directory_id == LOST_DIR else dead.directory_id
            if expected is not None:
                known = KnownDirs(ids={**known.ids, dead.path: expected}, added=known.added)
            directory_id = self._require_known(log_dir, answer, known, expected)
            log_dir.identify(directory_id, answer.device)
            log_dir.start_watches()
            await self._secure_reserve(log_dir, is_new=False)
        except BaseException as e:
            self.dismiss(log_dir, e)
            raise
        return log_dir

    async def open_new(self, path: str, others: Sequence[LogDir]) -> LogDir:
        """Open the disk at ``path`` as a new directory of this node. The result is like that of
        :meth:`reopen`.

        An empty disk gets an id, and is refused without space for its reserve. A disk that was
        formatted for this node keeps its id.

        :param others: the present directories of the node. The disk must be none of them.
        :raises OperatingError: the disk cannot be used. The message does not reveal its content.
        """
        failed = self._failed.get(path)
        if failed is not None and await _hangs(failed):
            raise KafkaStorageError(f"{path} still hangs: it was tried before", path=path)
        log_dir = self._begin(path)
        try:
            answer, directory_id = await self._welcome(log_dir, others)
            log_dir.identify(directory_id, answer.device)
            log_dir.start_watches()
            await self._secure_reserve(log_dir, is_new=answer.properties is None)
        except BaseException as e:
            self.dismiss(log_dir, e)
            raise
        return log_dir

    def dismiss(self, log_dir: LogDir, why: BaseException) -> None:
        """Take a directory on trial OFFLINE, without a report, instead of into service.

        :param why: the error that ended the trial, for log events.
        """
        is_cancelled = isinstance(why, asyncio.CancelledError)
        reason = "cancelled, because the broker stops" if is_cancelled else str(why)
        log_dir.go_offline(reason, report=False)
        self._failed = {path: failed for path, failed in self._failed.items() if failed.is_busy}
        self._failed[log_dir.path] = log_dir

    def _begin(self, path: str) -> LogDir:
        log_dir = self._make_log_dir(path)
        log_dir.put_on_trial()
        return log_dir

    async def _welcome(
        self, log_dir: LogDir, others: Sequence[LogDir]
    ) -> tuple[Examination, DirectoryId]:
        """Examine a new disk. Return the result, and the id of the disk: its own or a new one."""
        try:
            await self._require_allowed(log_dir)
            answer = await self._examine(log_dir)
            return answer, await self._named(log_dir, answer, others)
        except OperatingError as e:
            raise not_taken(log_dir.path, e.message) from e

    async def _require_allowed(self, log_dir: LogDir) -> None:
        """Raise an error unless the path is below an allowed root.

        The check runs in the directory's thread, because a link may lead to a hung disk.
        """
        vfs, path = log_dir.vfs, log_dir.path

        def resolved() -> tuple[str, list[str]]:
            return vfs.real_path(path), [vfs.real_path(root) for root in self._allowed_roots]

        asked: asyncio.Future[tuple[str, list[str]]] = log_dir.submit(OpKind.START, resolved)
        if not await wait_awake(asked, self._timeout_ms):
            asked.cancel()
            raise KafkaStorageError(f"{path} did not answer", path=path)
        real, roots = await asked
        if not is_below_any(real, roots):
            raise _refused(f"{path} is {real}, which is not below log.dirs.allowed.roots")

    async def _examine(self, log_dir: LogDir) -> Examination:
        try:
            answer = await examine(log_dir, timeout_ms=self._timeout_ms)
        except StartupError as e:
            raise KafkaStorageError(str(e), path=log_dir.path) from e
        if answer is None:
            raise KafkaStorageError(log_dir.offline_reason, path=log_dir.path)
        return answer

    def _require_known(
        self,
        log_dir: LogDir,
        answer: Examination,
        known: KnownDirs,
        expected: DirectoryId | None,
    ) -> DirectoryId:
        match self._identify(log_dir, answer, known):
            case Found(directory_id=found):
                pass
            case Refused(reason=reason):
                raise _refused(reason)
            case Unnamed():
                raise _refused(
                    f"{log_dir.path} holds no directory of this node: take it in with "
                    f"kraftjbod-log-dirs --add"
                )
        if expected is not None and found != expected:
            raise _refused(
                f"directory {expected} is missing from {log_dir.path}: the disk there is "
                f"directory {found}; mount the right disk, or give {expected} up with "
                f"kraftjbod-log-dirs --forget"
            )
        return found

    async def _named(
        self, log_dir: LogDir, answer: Examination, others: Sequence[LogDir]
    ) -> DirectoryId:
        """Return the id of a disk that is new to this node. A disk without an id gets one."""
        if answer.holds_cluster_metadata:
            raise _refused(f"{log_dir.path} holds the metadata log of a cluster")
        known = await self._read_known()
        match self._identify(log_dir, answer, known.without_path(log_dir.path)):
            case Found(directory_id=found):
                other = next((d for d in others if d.directory_id == found), None)
                if other is not None:
                    raise _refused(
                        f"directory {found} at {log_dir.path} is already known as {other.path}: "
                        f"return it there with --reattach, or remove it with --forget"
                    )
                return found
            case Refused(reason=reason):
                raise _refused(reason)
            case Unnamed():
                pass
        if answer.properties is None:
            await self._require_empty(log_dir)
        drawn = DirectoryId.random(self._random_bytes)
        try:
            await give_id(log_dir, drawn, cluster_id=self._cluster_id, node_id=self._node_id)
        except StartupError as e:
            raise KafkaStorageError(str(e), path=log_dir.path) from e
        return drawn

    def _identify(
        self, log_dir: LogDir, answer: Examination, known: KnownDirs
    ) -> Found | Unnamed | Refused:
        return identify(
            log_dir.path,
            answer.properties,
            known=known,
            present={},
            cluster_id=self._cluster_id,
            node_id=self._node_id,
        )

    async def _require_empty(self, log_dir: LogDir) -> None:
        found = await log_dir.run_operation(
            OpKind.START, lambda: log_dir.vfs.list_dir(log_dir.path)
        )
        names = [entry.name for entry in found if entry.name not in _NO_CONTENT]
        if names:
            raise _refused(
                f"{log_dir.path} is neither empty nor formatted for this node: it holds "
                f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            )

    async def _secure_reserve(self, log_dir: LogDir, *, is_new: bool) -> None:
        """Build the reserve.

        Without space for it, a new directory is refused and a known one is SATURATED.
        """
        try:
            await log_dir.secure_reserve()
        except LogDirImpairedError as e:
            if is_new:
                raise _refused(
                    f"{log_dir.path} has no space for its reserve (log.dir.reserve.bytes): "
                    f"{e.message}"
                ) from e

    # -- remembering ------------------------------------------------------------------------

    async def remember(self, log_dir: LogDir, *, is_added: bool) -> None:
        """Store the id and path of the directory in ``known-log-dirs.json``.

        :param is_added: whether the directory was added at run time.
        :raises KafkaStorageError: the metadata directory is or goes offline, or the file is
            malformed.
        :raises LogDirImpairedError: the metadata directory is STALLED or has no space.
        """
        path, uid = log_dir.path, log_dir.directory_id
        await self._change(
            lambda known: known.took_in(path, uid) if is_added else known.seen({path: uid})
        )

    async def forget(self, directory_id: DirectoryId) -> None:
        """Remove a directory from ``known-log-dirs.json``. Errors are those of :meth:`remember`."""
        await self._change(lambda known: known.without(directory_id))

    async def _change(self, change: Callable[[KnownDirs], KnownDirs]) -> None:
        metadata = self._metadata
        async with self._remembering:
            known = await self._read_known()
            changed = change(known)
            if changed != known:
                await metadata.run_operation(
                    OpKind.CHECKPOINT,
                    lambda: write_known_dirs(metadata.vfs, metadata.path, changed),
                )

    async def _read_known(self) -> KnownDirs:
        path = f"{self._metadata.path}/{KNOWN_LOG_DIRS}"
        text = await self._metadata.read_text(OpKind.READ, path)
        try:
            return KnownDirs() if text is None else parse_known_dirs(text, path)
        except StartupError as e:
            raise KafkaStorageError(str(e), path=path) from e


async def _hangs(old: LogDir) -> bool:
    """Return whether an operation of ``old`` still runs, or the release of its lock does not end in
    time.
    """
    return old.is_busy or not await old.unlocked()


def is_below_any(path: str, roots: Sequence[str]) -> bool:
    """Return whether ``path`` is below one of ``roots``.

    Compares names only, without resolving links.
    """
    return any(is_below(path, root) for root in roots)


def not_taken(path: str, reason: str) -> OperatingError:
    """Log ``reason``, and return the error for a path that is not accepted.

    The error does not reveal the reason.
    """
    get_logger().info("new_log_dir_not_taken", log_dir=path, reason=reason)
    return _refused(
        f"{path} is refused: name a directory below log.dirs.allowed.roots that the broker may "
        f"write to, and that is either empty or formatted for this node and not in use; "
        f"new_log_dir_not_taken in the broker's telemetry has the reason"
    )


def _refused(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REQUEST)
