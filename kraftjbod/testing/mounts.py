"""WIRE. Disks that a test may break: real file systems on loop devices and in memory.

* :func:`mounted` makes one and undoes it whatever happens; names are unique per process.
* A :class:`Disk` knows the ways to die: :meth:`Disk.shut_down` (every call fails with EIO),
  :meth:`Disk.abort` (read-only), :meth:`Disk.detach` (lazy unmount), :meth:`Disk.fill` (ENOSPC).
* :func:`closed_to_owner` takes a directory's permission bits away, which only bites processes
  without CAP_DAC_OVERRIDE.
* :func:`reap` undoes what dead processes left; it goes by the name prefix, of the directory
  or of what is mounted, and never touches a mount of a process that is alive.

Every command has a deadline, and an unmount that is refused becomes a lazy one: nothing hangs.
A disk that hangs is made by frozen.py.
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
#: xfs and btrfs refuse to be smaller; the image is sparse, so size costs nothing.
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
#: mkfs lives in sbin, which is not on everybody's PATH.
_PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class DiskKitError(Exception):
    """A command of the kit failed; the message holds what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A mounted file system. ``path`` is its root, writable for everybody."""

    path: str
    kind: Kind

    @property
    def is_mounted(self) -> bool:
        return any(mount.path == self.path for mount in mount_table())

    def shut_down(self, *, keeps_names: bool = False) -> None:
        """Kill it: EIO from reads, writes, fsync and open, at once; unsynced data is lost.

        ``keeps_names`` writes the journal first. Only ext4 and xfs can do that.
        """
        how = _SHUTDOWN_WITH_LOG_FLUSH if keeps_names else _SHUTDOWN_WITHOUT_LOG_FLUSH
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def abort(self) -> None:
        """Let ext4 give up its journal: what is cached can be read, every write is EROFS."""
        assert self.kind == "ext4", "only ext4 knows the mount option abort"
        _run("mount", "-o", "remount,abort", self.path)

    def detach(self) -> None:
        """Unmount lazily: open files go on working, the path shows the directory beneath."""
        detach(self.path)

    def set_aside(self) -> None:
        """As :meth:`detach`, but all that is on it waits for :meth:`put_back`."""
        os.makedirs(self._aside, exist_ok=True)
        _run("mount", "--bind", self.path, self._aside)
        self.detach()

    def put_back(self) -> None:
        """Undo :meth:`set_aside`."""
        _run("mount", "--bind", self._aside, self.path)
        _run("umount", "-l", self._aside)

    @property
    def _aside(self) -> str:
        return f"{os.path.dirname(self.path)}/aside"

    @property
    def image(self) -> str:
        """What a loop device makes a disk of; a tmpfs has none."""
        assert self.kind != "tmpfs", "a tmpfs is gone with its mount"
        return f"{os.path.dirname(self.path)}/image"

    def unmount(self) -> None:
        """In order, as before a repair.

        :raises DiskKitError: if a process has a file of it open.
        """
        _run("umount", self.path)

    def repair(self) -> None:
        """Check the file system that is not mounted, and mend what is wrong."""
        if self.kind == "ext4":
            _run("e2fsck", "-p", "-f", self.image, may_be=(0, 1))
        else:
            # The journal of xfs is replayed by mounting it, which has to be possible.
            self.mount()
            self.unmount()

    def wipe(self) -> None:
        """A new, empty file system in the place of one that is not mounted."""
        _make_filesystem(self.kind, self.image)

    def replace(self) -> None:
        """Another disk, empty, in the place of this one; open files stay open on the old one."""
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
            # "-o loop" detaches the loop device by itself once nothing uses it any more.
            self.mount()
        os.chmod(self.path, 0o777)  # noqa: S103 - like /tmp

    def mount(self, *, at: str | None = None, options: str = "loop") -> None:
        """Mount it again, where it was or ``at`` another place."""
        _run("mount", "-t", self.kind, "-o", options, self.image, at or self.path)

    def fill(self) -> None:
        """Write until there is no space left."""
        fd = os.open(f"{self.path}/balloon", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            chunk = _FILL_CHUNK
            while chunk:
                try:
                    os.write(fd, chunk)
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    # The last bytes go in small pieces.
                    chunk = chunk[: len(chunk) // 2]
        finally:
            os.close(fd)

    def free_space(self) -> None:
        """Undo :meth:`fill`, for good: a disk that dies next does not come back full."""
        os.unlink(f"{self.path}/balloon")
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def why_no_mounts() -> str | None:
    """The reason why this process may mount nothing, or ``None`` if it may."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with open("/proc/self/status", encoding="ascii") as file:
        (word,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    # As root in most containers.
    return None if int(word, 16) & _CAP_SYS_ADMIN else "mounting needs CAP_SYS_ADMIN"


def why_not(kind: Kind) -> str | None:
    """The reason why this machine cannot mount a ``kind``, or ``None`` if it can."""
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
    """A fresh file system of at least ``size_bytes`` for the length of the ``with`` block.

    :raises DiskKitError: if the machine refuses; ask :func:`why_not` first.
    """
    size_bytes = max(size_bytes, _SMALLEST_BYTES[kind])
    home = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    # Daemons may run as somebody else than the owner of the test.
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
    """A directory for somebody else to mount on; what is there at the end is unmounted."""
    home = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    os.chmod(home, 0o755)  # noqa: S103 - nothing secret is in there
    os.mkdir(f"{home}/mount")
    try:
        yield f"{home}/mount"
    finally:
        _undo(home)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of the kernel's table; ``source`` is what is mounted."""

    source: str
    path: str
    options: frozenset[str]


def mount_table() -> list[Mount]:
    """What this process sees mounted, newest first."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split(" ") for line in file]
    return [
        Mount(source=source, path=_unescaped(path), options=frozenset(options.split(",")))
        for source, path, _, options, *_ in reversed(lines)
    ]


def detach(path: str) -> None:
    """Unmount lazily, without asking the file system: it may be one that does not answer.

    :raises DiskKitError: if nothing is mounted there, or it is somebody else's.
    """
    if os.geteuid() != 0:
        _run("fusermount3", "-u", "-z", path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW):
        raise DiskKitError(f"cannot unmount {path}: {os.strerror(ctypes.get_errno())}")


def source_name(kind: str) -> str:
    """What a mount of this process is called, wherever it is, so that :func:`reap` knows it."""
    return f"{PREFIX}{os.getpid()}-{kind}"


@contextlib.contextmanager
def closed_to_owner(path: str) -> Iterator[None]:
    """``chmod 000`` on ``path``, and the old mode again afterwards."""
    mode = os.stat(path).st_mode & 0o7777
    os.chmod(path, 0)
    try:
        yield
    finally:
        os.chmod(path, mode)


def reap(*, also_own: bool = False) -> list[str]:
    """Undo the mounts of processes that are gone; the directories removed or unmounted.

    One process does it at a time: test runs that start together find the same remains.
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
                # Something holds a file open; the mount ends when that does.
                detach(mount.path)
    shutil.rmtree(home)


def _unescaped(path: str) -> str:
    """Blanks and the like stand as octal numbers in the table."""
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
