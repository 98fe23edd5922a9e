"""WIRE. File systems that a test may break: on loop devices and in memory.

* :func:`mounted` creates one and always removes it; names are unique per process.
* A :class:`Disk` has methods for its faults: :meth:`Disk.shut_down` (every call fails with EIO),
  :meth:`Disk.abort` (read-only), :meth:`Disk.detach` (lazy unmount), :meth:`Disk.fill` (ENOSPC).
* :func:`closed_to_owner` removes a directory's permission bits, which affects only processes
  without CAP_DAC_OVERRIDE.
* :func:`reap` unmounts the remains of dead processes. It recognises them by the name prefix of
  the directory or of the mounted source, and never touches a mount of a living process.

Every command has a time limit, and a refused unmount becomes a lazy one, so that nothing hangs.
frozen.py makes a disk hang.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["ext4", "xfs", "btrfs", "tmpfs"]

PREFIX: Final = "kraftjbod-disk-"
COMMAND_TIMEOUT_S: Final = 30
_MIB: Final = 1024 * 1024
#: Minimum sizes of xfs and btrfs. The image is sparse, so its size costs nothing.
_SMALLEST_BYTES: Final[dict[Kind, int]] = {
    "ext4": 16 * _MIB,
    "xfs": 320 * _MIB,
    "btrfs": 128 * _MIB,
    "tmpfs": _MIB,
}
_FS_IOC_SHUTDOWN: Final = 0x8004587D
_SHUTDOWN_WITH_LOG_FLUSH: Final = 1
_SHUTDOWN_WITHOUT_LOG_FLUSH: Final = 2
_MNT_DETACH: Final = 2
_CAP_SYS_ADMIN: Final = 1 << 21
_LOOP_CONTROL: Final = "/dev/loop-control"
_UMOUNT_NOFOLLOW: Final = 8
_FILL_CHUNK: Final = bytes(64 * 1024)
#: mkfs is in sbin, which is not on every user's PATH.
_PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class DiskKitError(Exception):
    """A disk or fault is not possible here, or a command for it failed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A mounted file system of a test, with methods to damage, detach and repair it.

    ``path`` is its mount point, writable for all users.
    """

    path: str
    kind: Kind

    @property
    def is_mounted(self) -> bool:
        return any(mount.path == self.path for mount in mount_table())

    def shut_down(self, *, keeps_names: bool = False) -> None:
        """Shut the file system down: EIO from reads, writes, fsync and open. Unsynced data is lost.

        Only ext4 and xfs can be shut down.

        :param keeps_names: write the journal first, so that changes of names survive.
        """
        how = _SHUTDOWN_WITH_LOG_FLUSH if keeps_names else _SHUTDOWN_WITHOUT_LOG_FLUSH
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def abort(self) -> None:
        """Make ext4 abort its journal: cached data can be read, every write fails with EROFS."""
        assert self.kind == "ext4", "only ext4 knows the mount option abort"
        _run("mount", "-o", "remount,abort", self.path)

    def detach(self) -> None:
        """Unmount lazily: open files still work, and the path shows the directory beneath."""
        detach(self.path)

    def set_aside(self) -> None:
        """Unmount as :meth:`detach`, but keep the content mounted at another path until
        :meth:`put_back`.
        """
        os.makedirs(self._aside, exist_ok=True)
        _run("mount", "--bind", self.path, self._aside)
        self.detach()

    def put_back(self) -> None:
        """Mount the file system at its path again, after :meth:`set_aside`."""
        _run("mount", "--bind", self._aside, self.path)
        _run("umount", "-l", self._aside)

    @property
    def _aside(self) -> str:
        return f"{os.path.dirname(self.path)}/aside"

    @property
    def image(self) -> str:
        """Path of the file behind the loop device; not for a tmpfs, which has none."""
        assert self.kind != "tmpfs", "a tmpfs is gone with its mount"
        return f"{os.path.dirname(self.path)}/image"

    def unmount(self) -> None:
        """Unmount cleanly, as before a repair.

        :raises DiskKitError: a process has a file on it open.
        """
        _run("umount", self.path)

    def repair(self) -> None:
        """Check and repair the file system, which must be unmounted and stays so.

        :raises DiskKitError: the repair failed.
        """
        if self.kind == "ext4":
            _run("e2fsck", "-p", "-f", self.image, may_be=(0, 1))
        else:
            # Mounting replays the journal of xfs.
            self.mount()
            self.unmount()

    def wipe(self) -> None:
        """Create a new file system on this disk, which must be unmounted. Its content is lost.

        A ``tmpfs`` has no image and cannot be wiped.
        """
        _make_filesystem(self.kind, self.image)

    def replace(self) -> None:
        """Mount a new, empty file system at the path; open files stay open on the old one."""
        size_bytes = self.size_bytes
        self.detach()
        if self.kind != "tmpfs":
            os.replace(self.image, f"{self.image}.old")
        self._make(size_bytes)

    @property
    def size_bytes(self) -> int:
        if self.kind != "tmpfs":
            return os.stat(self.image).st_size
        found = os.statvfs(self.path)
        return found.f_blocks * found.f_frsize

    def _make(self, size_bytes: int) -> None:
        if self.kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", PREFIX + self.kind, self.path)
        else:
            with open(self.image, "wb") as file:
                file.truncate(size_bytes)
            _make_filesystem(self.kind, self.image)
            # "-o loop" detaches the loop device when it is no longer used.
            self.mount()
        os.chmod(self.path, 0o777)  # noqa: S103 - like /tmp

    def mount(self, *, at: str | None = None, options: str = "loop") -> None:
        """Mount the file system again, which must not be a tmpfs.

        :param at: mount point; by default its path.
        :param options: value of ``-o`` of mount(8).
        """
        _run("mount", "-t", self.kind, "-o", options, self.image, at or self.path)

    @property
    def is_shut_down(self) -> bool:
        """Whether :meth:`shut_down` still has an effect.

        It lasts over an unmount if the file system is mounted in another mount namespace too, as
        of ``ip netns exec``, because the kernel has one state for all its mounts.
        """
        try:
            with tempfile.TemporaryFile(dir=self.path):
                return False
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            return True

    def fill(self) -> None:
        """Allocate space until none is left.

        Most of it is allocated without writing, so that a large disk is full at once and its image
        stays sparse.
        """
        fd = os.open(f"{self.path}/balloon", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._allocate(fd)
            chunk = _FILL_CHUNK
            while chunk:
                try:
                    os.write(fd, chunk)
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    # Fill the last bytes in small pieces.
                    chunk = chunk[: len(chunk) // 2]
        finally:
            os.close(fd)

    def _allocate(self, fd: int) -> None:
        """Allocate blocks of the file system to the open file, until less than a chunk is left."""
        free = os.statvfs(self.path)
        size_bytes, allocated_bytes = free.f_bfree * free.f_frsize, 0
        while size_bytes >= len(_FILL_CHUNK):
            try:
                os.posix_fallocate(fd, allocated_bytes, size_bytes)
                allocated_bytes += size_bytes
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                size_bytes //= 2

    def free_space(self) -> None:
        """Undo :meth:`fill` durably: the disk is not full after a later fault either."""
        os.unlink(f"{self.path}/balloon")
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def why_no_mounts() -> str | None:
    """Return the reason why this process cannot mount, or ``None`` if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with open("/proc/self/status", encoding="ascii") as file:
        (word,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    # The usual case of root in a container.
    return None if int(word, 16) & _CAP_SYS_ADMIN else "mounting needs CAP_SYS_ADMIN"


def why_not(kind: Kind) -> str | None:
    """Return the reason why this machine cannot mount a ``kind``, or ``None`` if it can."""
    reason = why_no_mounts()
    if reason is not None:
        return reason
    if kind != "tmpfs" and not os.path.exists(_LOOP_CONTROL):
        return f"there are no loop devices: {_LOOP_CONTROL} is missing"
    missing = [tool for tool in _tools(kind) if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"mounting {kind} needs {', '.join(missing)}"
    return None


@contextlib.contextmanager
def mounted(kind: Kind, *, size_bytes: int = 64 * _MIB) -> Iterator[Disk]:
    """Mount a new file system of at least ``size_bytes`` during the ``with`` block.

    :raises DiskKitError: the machine refused. :func:`why_not` returns foreseeable reasons.
    """
    size_bytes = max(size_bytes, _SMALLEST_BYTES[kind])
    home = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    # Daemons may run as another user than the test.
    os.chmod(home, 0o755)  # noqa: S103 - nothing secret is in there
    disk = Disk(path=f"{home}/{kind}", kind=kind)
    os.mkdir(disk.path)
    try:
        disk._make(size_bytes)
        yield disk
    finally:
        _undo(home)


@contextlib.contextmanager
def empty_mount_point() -> Iterator[str]:
    """Yield a directory for another process to mount on, and unmount it at the end."""
    home = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    os.chmod(home, 0o755)  # noqa: S103 - nothing secret is in there
    os.mkdir(f"{home}/mount")
    try:
        yield f"{home}/mount"
    finally:
        _undo(home)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of the kernel's mount table; ``source`` is the mounted device or name."""

    source: str
    path: str
    options: frozenset[str]


def mount_table() -> list[Mount]:
    """Return the mounts that this process sees, newest first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split(" ") for line in file]
    return [
        Mount(source=source, path=_unescaped(path), options=frozenset(options.split(",")))
        for source, path, _, options, *_ in reversed(lines)
    ]


def detach(path: str) -> None:
    """Unmount lazily, without a request to the file system, which may not answer.

    :raises DiskKitError: no file system is mounted at ``path``, or another user mounted it.
    """
    if os.geteuid() != 0:
        _run("fusermount3", "-u", "-z", path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW):
        raise DiskKitError(f"cannot unmount {path}: {os.strerror(ctypes.get_errno())}")


def source_name(kind: str) -> str:
    """Return the source name for mounts of this process, by which :func:`reap` recognises them."""
    return f"{PREFIX}{os.getpid()}-{kind}"


@contextlib.contextmanager
def closed_to_owner(path: str) -> Iterator[None]:
    """Set mode 000 on ``path`` during the ``with`` block."""
    mode = os.stat(path).st_mode & 0o7777
    os.chmod(path, 0)
    try:
        yield
    finally:
        os.chmod(path, mode)


def reap(*, also_own: bool = False) -> list[str]:
    """Undo the mounts of dead processes; return the removed or unmounted directories.

    A lock serialises concurrent test runs, which would find the same remains.

    :param also_own: also undo the mounts of this process, at its end.
    """
    reaped = []
    parent = tempfile.gettempdir()
    turn = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for mount in mount_table():
            if _is_left_over(mount.source, also_own) and _may_unmount(mount):
                detach(mount.path)
                reaped.append(mount.path)
        for name in sorted(os.listdir(parent)):
            if _is_left_over(name, also_own):
                _undo(f"{parent}/{name}")
                reaped.append(f"{parent}/{name}")
    finally:
        os.close(turn)
    return reaped


def _is_left_over(name: str, also_own: bool) -> bool:
    owner = name.removeprefix(PREFIX).partition("-")[0]
    if not name.startswith(PREFIX) or not owner.isdigit():
        return False
    return also_own if int(owner) == os.getpid() else not os.path.exists(f"/proc/{owner}")


def _may_unmount(mount: Mount) -> bool:
    return os.geteuid() == 0 or f"user_id={os.geteuid()}" in mount.options


def _tools(kind: Kind) -> tuple[str, ...]:
    return ("mount", "umount") if kind == "tmpfs" else ("mount", "umount", f"mkfs.{kind}")


def _make_filesystem(kind: Kind, image: str) -> None:
    # Without reserved blocks (-m 0) a full ext4 is full for root too.
    options = ("-q", "-F", "-m", "0") if kind == "ext4" else ("-q", "-f")
    _run(f"mkfs.{kind}", *options, image)


def _undo(home: str) -> None:
    for mount in mount_table():
        if mount.path.startswith(f"{home}/"):
            try:
                _run("umount", mount.path)
            except DiskKitError:
                # A process has a file open. The file system ends when the file is closed.
                detach(mount.path)
    shutil.rmtree(home)


def _unescaped(path: str) -> str:
    """Decode the octal escapes of blanks and other characters in the mount table."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _run(*command: str, may_be: tuple[int, ...] = (0,)) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own words, no shell
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            env={**os.environ, "PATH": _PATH},
        )
    except subprocess.TimeoutExpired as e:
        raise DiskKitError(f"{' '.join(command)}: no answer in {COMMAND_TIMEOUT_S} s") from e
    if done.returncode not in may_be:
        raise DiskKitError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


atexit.register(reap, also_own=True)
