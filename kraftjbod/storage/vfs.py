"""DISK. The file system interface of a log directory: ``Vfs`` and ``VfsFile``, and their POSIX
implementations ``RealVfs`` and ``RealFile``.

* All calls are synchronous and run in a log directory's own thread. The exception is
  ``read_cached_at``, which never waits for the disk and may therefore run on the event loop.
* Errors are plain ``OSError``. This module does not judge them. A missing file is an error too,
  except for calls with ``if_exists``, ``exists``, ``is_dir`` and ``remove_tree``.
* Paths are strings, joined with ``/``.
* Every file is opened close-on-exec.

This module knows no file formats. Its only state is the set of open files.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import io
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from typing import Final, Protocol

from kraftjbod.core.descriptor_budget import OUT_OF_DESCRIPTORS
from kraftjbod.protocol.framing import Buffer

#: ``pwritev`` takes at most IOV_MAX (1024 on Linux) buffers.
_MAX_BUFFERS: Final = 1024
#: Only the daemon's user and group may read records.
_FILE_MODE: Final = 0o640
#: Several fsyncs at a time share commits of the file system's journal.
_MOST_SYNCS: Final = 8
#: Below that, starting a thread costs more than it saves.
_SYNCS_PER_THREAD: Final = 8
#: The unit of ``st_blocks``, independent of the file system's block size.
_BLOCK_BYTES: Final = 512
#: Most bytes that one removal frees.
REMOVAL_BYTES: Final = 64 * 1024 * 1024
#: Number of times that a removal of a directory may find a name removed by another program.
_MOST_VANISHING: Final = 10


class OpenMode(Enum):
    """Mode of :meth:`Vfs.open`: read, read and write, or both with creation of a missing file."""

    READ = os.O_RDONLY
    READ_WRITE = os.O_RDWR
    CREATE = os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True, kw_only=True)
class DirEntry:
    """An entry of a directory.

    ``size_bytes`` is 0 for a directory, and None if it was not read. Symbolic links are not
    followed: a link to a directory has ``is_dir`` False.
    """

    name: str
    is_dir: bool
    size_bytes: int | None
    is_link: bool = False

    @property
    def known_size(self) -> int:
        """``size_bytes`` of an entry that was listed with its size."""
        assert self.size_bytes is not None, self
        return self.size_bytes

    def require_no_link(self, directory: str) -> None:
        """Raise an error if the entry is a symbolic link.

        :raises OSError: the entry is a symbolic link; the message names its path.
        """
        if self.is_link:
            path = f"{directory}/{self.name}"
            raise OSError(f"{path} is a symbolic link: move what it leads to here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size and free space of a file system for an unprivileged user, in bytes and inodes."""

    total_bytes: int
    usable_bytes: int
    free_inodes: int
    counts_inodes: bool = True
    """False for file systems that allocate inodes on demand (btrfs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Length of a file, and the disk space that is allocated to it, in bytes."""

    size_bytes: int
    allocated_bytes: int


class VfsFile(Protocol):
    """An open file, addressed by position. Dropping the object does not close the file."""

    def size(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes | bytearray:
        """Read ``size`` bytes at ``position``. Fewer bytes mean the end of the file."""
        ...

    def read_cached_at(self, position: int, size: int) -> memoryview:
        """Return the part of ``read_at`` that is in the page cache, possibly fewer bytes.

        :raises BlockingIOError: the first byte is not in the page cache.
        :raises OSError: EOPNOTSUPP or EINVAL if the file system or kernel supports no such reads.
        """
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all ``buffers``, one after the other, starting at ``position``.

        If the call fails, some of the bytes may be written.
        """
        ...

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        """Copy ``size`` bytes at ``position`` of ``source`` to the same position here, in the
        kernel.

        Both files belong to the same implementation of ``Vfs``. Returns the number of bytes copied,
        which is less than ``size`` only at the end of ``source``.

        :raises OSError: EINVAL or ENOSYS if the two file systems do not support it.
        """
        ...

    def forget_cached(self, position: int, size: int) -> None:
        """Advise the kernel to drop these bytes from the page cache (POSIX_FADV_DONTNEED)."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make data and size durable (fdatasync)."""
        ...

    def close(self) -> None: ...


class Vfs(Protocol):
    """The file system operations that the code of a log directory uses."""

    def open(self, path: str, mode: OpenMode) -> VfsFile: ...

    def open_if_exists(self, path: str) -> VfsFile | None:
        """Open the file for reading; None if it does not exist."""
        ...

    def open_stream(self, path: str) -> io.BufferedReader:
        """Open the file for one sequential read from its beginning. Intended for small files.

        The caller closes the reader.

        :raises OSError: the file cannot be opened.
        """
        ...

    def read_if_exists(self, path: str) -> bytes | None:
        """Return the content of the file; None if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool:
        """Return whether ``path`` is a directory; False if it does not exist."""
        ...

    def real_path(self, path: str) -> str:
        """Return ``path`` without symbolic links, ``.`` and ``..``. The file need not exist."""
        ...

    def extent_if_exists(self, path: str) -> Extent | None: ...

    def list_dir(self, path: str, *, sized: str | None = None) -> list[DirEntry]:
        """Return the files, directories and links in ``path``, sorted by name.

        A name that another thread renames or removes meanwhile may be absent.

        :param sized: suffix of the names whose sizes are read, which costs one stat call each. With
            None no sizes are read.
        """
        ...

    def make_dirs(self, path: str) -> None:
        """Create the directory ``path`` and its missing parents. No error if it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically. An existing file ``target`` is replaced.

        The rename is durable after :meth:`sync_dir` of the directory.
        """
        ...

    def unlink_if_exists(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove the directory ``path`` and everything below it.

        No error if ``path`` does not exist or disappears meanwhile.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in ``path`` durable (fsync)."""
        ...

    def sync_side_by_side(
        self, syncs: Sequence[Callable[[], None]], beat: Callable[[], None]
    ) -> None:
        """Run fsyncs in any order, several at a time, and call ``beat`` after each.

        Returns after the last one has ended. If some failed, the first error is raised when no
        fsync runs any more; some may not have been started.
        """
        ...

    def device(self, path: str) -> int:
        """Return ``st_dev`` of ``path``, which changes when a file system is mounted there."""
        ...

    def space(self, path: str) -> Space: ...

    def try_lock(self, path: str) -> VfsFile | None:
        """Create the file ``path`` and lock it exclusively until it is closed or the process ends.

        Returns None if another process or object holds the lock.
        """
        ...

    def let_go(self, root: str) -> None:
        """Abandon all open files below ``root``, locks included, so that the disk can be unmounted.

        Operations on an abandoned file fail with EBADF. Later calls of :meth:`open` below ``root``
        fail with ESTALE. Files that :meth:`open_stream` or :meth:`read_if_exists` have open are not
        abandoned. The call may come from any thread, may hang with the disk, and needs no free
        descriptor.
        """
        ...

    def close_let_go(self, root: str) -> None:
        """Close the descriptors that :meth:`let_go` abandoned. Until then they count as open files.

        Call this only when no thread can still use one of those files.
        """
        ...


class RealFile:
    """``VfsFile`` of a file descriptor.

    The class deliberately has no finalizer: files of a failed disk are dropped, and closing them
    may hang.
    """

    __slots__ = ("_fd", "_open_files", "path")

    def __init__(self, fd: int, path: str, open_files: OpenFiles) -> None:
        self._fd = fd
        self.path = path
        self._open_files = open_files
        open_files.note(fd, self)

    def __repr__(self) -> str:
        return f"<RealFile {self.path} fd={self._fd}>"

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, size: int) -> bytes | bytearray:
        first = os.pread(self._fd, size, position)
        if len(first) == size or not first:
            return first
        whole = bytearray(first)
        while len(whole) < size:
            more = os.pread(self._fd, size - len(whole), position + len(whole))
            if not more:
                break
            whole += more
        return whole

    def read_cached_at(self, position: int, size: int) -> memoryview:
        buffer = bytearray(size)
        got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
        return memoryview(buffer)[:got]

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position)
        if written < total:
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(self._fd, rest[written:], position + written)

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        assert isinstance(source, RealFile), source
        os.lseek(self._fd, position, os.SEEK_SET)
        copied = 0
        while copied < size:
            more = os.sendfile(self._fd, source._fd, position + copied, size - copied)
            if not more:
                break
            copied += more
        return copied

    def forget_cached(self, position: int, size: int) -> None:
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        self._open_files.close(self._fd)

    def become_useless(self, nothing: int) -> None:
        """Redirect the file to the descriptor ``nothing``, so that all later operations fail with
        EBADF.
        """
        self._fd = nothing


class SpareDescriptor:
    """A descriptor held in reserve for an fsync when the process can open no other descriptor.

    An fsync of a directory makes earlier renames and removals durable. It must not fail because,
    for example, client connections occupy every descriptor.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._fd: int | None = None
        self._take()
        #: An O_PATH descriptor: reads, writes and syncs on it fail with EBADF. Never closed.
        self.nothing = os.open("/", os.O_PATH | os.O_CLOEXEC)

    def sync_dir(self, path: str) -> None:
        """Sync the directory ``path`` with the reserved descriptor.

        :raises OSError: EMFILE, if another thread took the released descriptor first.
        """
        with self._mutex:
            if self._fd is not None:
                os.close(self._fd)
            try:
                _sync_dir(path)
            finally:
                self._take()

    def _take(self) -> None:
        try:
            self._fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._fd = None  # No descriptor is free now; the next call tries again.


@functools.cache
def _spare() -> SpareDescriptor:
    """Return the spare descriptor that all disks of the process share."""
    return SpareDescriptor()


def _sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class OpenFiles:
    """The open descriptors of one ``Vfs``, so that all files below a path can be abandoned at once.

    An abandoned descriptor keeps its number and is redirected to ``nothing``. Closing it at once
    would let a new file of a healthy disk reuse the number, and a late operation could write to
    that file. :meth:`close_given_up` closes it when no thread can still use it.
    """

    def __init__(self, nothing: int) -> None:
        """Create without open files.

        :param nothing: a descriptor without a file, whose use fails with EBADF.
        """
        self._nothing = nothing
        self._files: dict[int, RealFile] = {}
        self._given_up: list[str] = []
        self._useless: dict[int, str] = {}
        self._mutex = threading.Lock()

    def note(self, fd: int, file: RealFile) -> None:
        """Register an open file.

        :raises OSError: ESTALE, if its path was abandoned; ``fd`` is closed then.
        """
        with self._mutex:
            is_late = any(file.path.startswith(root) for root in self._given_up)
            if not is_late:
                self._files[fd] = file
        if is_late:
            os.close(fd)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), file.path)

    def close(self, fd: int) -> None:
        """Close ``fd``; no effect if it was closed or abandoned before."""
        with self._mutex:
            is_ours = self._files.pop(fd, None) is not None
        if is_ours:
            os.close(fd)

    def give_up(self, root: str) -> None:
        prefix = root.rstrip("/") + "/"
        with self._mutex:
            self._given_up.append(prefix)
            found = {fd: f for fd, f in self._files.items() if f.path.startswith(prefix)}
            for fd, file in found.items():
                del self._files[fd]
                file.become_useless(self._nothing)
        # Operations that already started, or fetched the number, fail with EBADF as well.
        for fd, file in found.items():
            os.dup2(self._nothing, fd, inheritable=False)
            with self._mutex:
                self._useless[fd] = file.path

    def close_given_up(self, root: str) -> None:
        prefix = root.rstrip("/") + "/"
        with self._mutex:
            found = [fd for fd, path in self._useless.items() if path.startswith(prefix)]
            for fd in found:
                del self._useless[fd]
        for fd in found:
            os.close(fd)


class RealVfs:
    """``Vfs`` of the operating system's file system."""

    def __init__(self) -> None:
        self._files = OpenFiles(_spare().nothing)

    def open(self, path: str, mode: OpenMode) -> RealFile:
        fd = os.open(path, mode.value | os.O_CLOEXEC, _FILE_MODE)
        return RealFile(fd, path, self._files)

    def open_if_exists(self, path: str) -> RealFile | None:
        try:
            return self.open(path, OpenMode.READ)
        except FileNotFoundError:
            return None

    def open_stream(self, path: str) -> io.BufferedReader:
        return io.BufferedReader(io.FileIO(path, "r"))

    def read_if_exists(self, path: str) -> bytes | None:
        try:
            with io.FileIO(path, "r") as file:
                return file.readall()
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        # os.path.exists() would report an error such as EIO as an absent file.
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def extent_if_exists(self, path: str) -> Extent | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return Extent(size_bytes=found.st_size, allocated_bytes=found.st_blocks * _BLOCK_BYTES)

    def is_dir(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def list_dir(self, path: str, *, sized: str | None = None) -> list[DirEntry]:
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                # Most file systems return the file type with the name, so this needs no stat call.
                is_dir, size_bytes = entry.is_dir(follow_symlinks=False), None
                try:
                    if is_dir:
                        size_bytes = 0
                    elif sized is not None and entry.name.endswith(sized):
                        size_bytes = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # Removed since the directory was read.
                entries.append(
                    DirEntry(
                        name=entry.name,
                        is_dir=is_dir,
                        size_bytes=size_bytes,
                        is_link=entry.is_symlink(),
                    )
                )
        entries.sort(key=lambda entry: entry.name)
        return entries

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink_if_exists(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        for _ in range(_MOST_VANISHING):
            if not os.path.lexists(path):
                return
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
        if os.path.lexists(path):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        try:
            _sync_dir(path)
        except OSError as e:
            if e.errno not in OUT_OF_DESCRIPTORS:
                raise
            _spare().sync_dir(path)

    def sync_side_by_side(
        self, syncs: Sequence[Callable[[], None]], beat: Callable[[], None]
    ) -> None:
        waiting, outcomes = deque(syncs), SimpleQueue[BaseException | None]()

        def work() -> None:
            while waiting:
                try:
                    sync = waiting.popleft()
                except IndexError:
                    return  # Another thread took the last one.
                try:
                    sync()
                except BaseException as e:
                    outcomes.put(e)
                else:
                    outcomes.put(None)

        if not _start_threads(work, min(_MOST_SYNCS, len(syncs) // _SYNCS_PER_THREAD)):
            return sync_in_order(syncs, beat)
        errors = []
        for _ in syncs:
            errors.append(outcomes.get())
            beat()
        for error in filter(None, errors):
            raise error

    def device(self, path: str) -> int:
        return os.stat(path).st_dev

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(
            total_bytes=found.f_blocks * found.f_frsize,
            usable_bytes=found.f_bavail * found.f_frsize,
            free_inodes=found.f_favail,
            counts_inodes=found.f_files > 0,
        )

    def try_lock(self, path: str) -> RealFile | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealFile(fd, path, self._files)

    def let_go(self, root: str) -> None:
        self._files.give_up(root)

    def close_let_go(self, root: str) -> None:
        self._files.close_given_up(root)


def _start_threads(work: Callable[[], None], count: int) -> int:
    """Start up to ``count`` threads that run ``work``.

    Return how many the process was allowed to start.
    """
    for started in range(count):
        try:
            threading.Thread(target=work, name="fsync", daemon=True).start()
        except RuntimeError:
            return started
    return count


def sync_in_order(syncs: Sequence[Callable[[], None]], beat: Callable[[], None]) -> None:
    """Run ``syncs`` one after the other, and ``beat`` after each.

    The first error is raised at once, and the remaining ``syncs`` are not run.
    """
    for sync in syncs:
        sync()
        beat()


class Undoing:
    """Context manager that calls ``undo`` if its body raises, and raises the error again.

    Operations on a full disk fail halfway, and the process continues to use the files. If ``undo``
    fails, its error is raised with the first one as context.
    """

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        return

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            self._undo()


def sync_renamed(vfs: Vfs, directory: str, undo: Callable[[], None]) -> None:
    """Make renames in ``directory`` durable by an fsync.

    If no descriptor is free, the fsync is impossible: ``undo`` then renames the files back and the
    error is raised. After any other error ``undo`` is not called.
    """
    try:
        vfs.sync_dir(directory)
    except OSError as e:
        if e.errno in OUT_OF_DESCRIPTORS:
            undo()
        raise


def write_atomically(vfs: Vfs, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace the content of the file ``path`` atomically: after a crash it is the old or the new
    bytes.

    With ``sync`` the new bytes are durable when this returns. Without it, the promise holds for a
    crash of the process only, not of the machine. If the call fails before the rename, the old
    content stays and the temporary file is removed.
    """
    temporary = write_temporary(vfs, path, data, sync=sync)
    with Undoing(lambda: vfs.unlink_if_exists(temporary)):
        vfs.rename(temporary, path)
    if sync:
        vfs.sync_dir(_directory_of(path))


def sync_and_rename(vfs: Vfs, temporary: str, path: str) -> None:
    """Rename the closed file ``temporary`` to ``path`` durably, after an fsync of its content.

    If the call fails before the rename, the file at ``path`` stays and ``temporary`` is removed.
    """
    with Undoing(lambda: vfs.unlink_if_exists(temporary)):
        file = vfs.open(temporary, OpenMode.READ_WRITE)
        with Undoing(file.close):
            file.sync()
        file.close()
        vfs.rename(temporary, path)
    vfs.sync_dir(_directory_of(path))


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def write_temporary(vfs: Vfs, path: str, data: bytes, *, sync: bool) -> str:
    """Write ``data`` to the file ``path`` + ``.tmp``, close it, and return its path. The caller
    renames it to ``path``.

    :param sync: whether the data is durable when this returns.
    :raises OSError: the temporary file was removed.
    """
    temporary = f"{path}.tmp"
    with Undoing(lambda: vfs.unlink_if_exists(temporary)):
        file = vfs.open(temporary, OpenMode.CREATE)
        with Undoing(file.close):
            file.truncate(0)
            file.write_at(0, [data])
            if sync:
                file.sync()
        file.close()
    return temporary


def remove_part(vfs: Vfs, path: str) -> bool:
    """Unlink the file ``path``, or truncate it by ``REMOVAL_BYTES`` if it is larger.

    Returns whether the file still exists: then call again.
    """
    if shrink(vfs, path):
        return True
    vfs.unlink_if_exists(path)
    return False


def shrink(vfs: Vfs, path: str) -> bool:
    """Truncate the file ``path`` by ``REMOVAL_BYTES``. No reader may need the truncated bytes.

    Returns False, without an effect, if the file is not larger or does not exist.
    """
    extent = vfs.extent_if_exists(path)
    if extent is None or extent.size_bytes <= REMOVAL_BYTES:
        return False
    file = vfs.open(path, OpenMode.READ_WRITE)
    try:
        file.truncate(extent.size_bytes - REMOVAL_BYTES)
    finally:
        file.close()
    return True
