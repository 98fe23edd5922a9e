"""WIRE. The server of the fault file system: shows a directory by FUSE, and fails on request.

It implements the kernel's protocol (linux/fuse.h, 7.31) without a library, one operation at a time.
``fault_fs.py`` starts it as a process and writes its orders: a file of one line that is replaced
atomically, and read before each operation.

* The kernel caches nothing that would hide a fault: it requests attributes, names and data each
  time. Therefore, files cannot be mapped into memory for shared writing.
* A full disk has no free space when the fault begins. Unlinked and truncated bytes become free.
* Closing a file never fails and never hangs, as on a disk. The server sets hanging operations aside
  and continues to answer others.
* The server unmounts the file system and ends when its parent process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.mounts import COMMAND_TIMEOUT_S, detach

#: The faults of this file system.
FAULTS: Final = frozenset(
    {DiskFault.EIO, DiskFault.READONLY, DiskFault.FULL, DiskFault.HANG, DiskFault.SLOW}
)

_IN_HEADER: Final = struct.Struct("<IIQQIIII")
_OUT_HEADER: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHII24x")
_OPEN_OUT: Final = struct.Struct("<QIi")
_MAX_WRITE: Final = 128 * 1024
_BUFFER_BYTES: Final = _MAX_WRITE + 64 * 1024
_ROOT: Final = 1
_POLL_S: Final = 0.01
_SECTOR_BYTES: Final = 512
_BLOCK_BYTES: Final = 4096
#: FOPEN_DIRECT_IO and FOPEN_NOFLUSH (Linux 5.16). An older kernel sends one FLUSH, and none after
#: the answer that FLUSH is not implemented.
_UNCACHED_NO_FLUSH: Final = 1 | 1 << 5
_NOSUID_NODEV: Final = 2 | 4

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _MKDIR, _UNLINK, _RMDIR, _RENAME = 1, 2, 3, 4, 9, 10, 11, 12
_OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FSYNC, _INIT = 14, 15, 16, 17, 18, 20, 26
_OPENDIR, _READDIR, _RELEASEDIR, _FSYNCDIR, _CREATE, _INTERRUPT = 27, 28, 29, 30, 35, 36
_BATCH_FORGET, _FALLOCATE, _RENAME2 = 42, 43, 45

_UNANSWERED: Final = frozenset({_FORGET, _BATCH_FORGET, _INTERRUPT})
#: Operations of the kernel, not of a program that uses the disk.
_NEVER_FAIL: Final = frozenset({_INIT, _RELEASE, _RELEASEDIR})
_CHANGES: Final = frozenset(
    {_SETATTR, _MKDIR, _UNLINK, _RMDIR, _RENAME, _WRITE, _FSYNC, _CREATE, _FALLOCATE, _RENAME2}
)
_SLOW: Final = frozenset({_UNLINK, _WRITE, _FSYNC, _FSYNCDIR, _CREATE})
#: Bits of SETATTR.
_MODE, _UID, _GID, _SIZE = 1, 2, 4, 8
_ATIME, _MTIME, _HANDLE, _ATIME_NOW, _MTIME_NOW = 16, 32, 64, 128, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOrder:
    """A message to the server of a fault file system: simulate ``fault`` from now on, or none.

    ``delay_s`` is the duration of operations on a slow disk, in seconds. ``number`` distinguishes
    equal orders.
    """

    fault: DiskFault | None
    delay_s: float
    number: int

    def write(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{self.fault or '-'} {self.delay_s} {self.number}", encoding="ascii")
        fresh.replace(path)

    @classmethod
    def read(cls, path: str) -> FaultOrder:
        with open(path, encoding="ascii") as file:
            word, delay_s, number = file.read().split()
        fault = next((known for known in FAULTS if known == word), None)
        return cls(fault=fault, delay_s=float(delay_s), number=int(number))


class _Gate:
    """Checks every operation first, and lets it wait or fail according to the current order."""

    def __init__(self, orders: str) -> None:
        self._orders = orders
        self._order = FaultOrder.read(orders)
        self._free_bytes = 0

    @property
    def is_readonly(self) -> bool:
        return self._order.fault is DiskFault.READONLY

    @property
    def free_bytes(self) -> int | None:
        """Free space on a full disk; ``None`` on any other."""
        return self._free_bytes if self._order.fault is DiskFault.FULL else None

    def holds(self, opcode: int) -> bool:
        """Return whether the operation has to wait because the disk hangs."""
        return opcode not in _NEVER_FAIL and self._read_order().fault is DiskFault.HANG

    def enter(self, opcode: int) -> None:
        """Delay or fail an operation as the injected fault requires.

        :raises OSError: the error with which the operation fails.
        """
        if opcode in _NEVER_FAIL:
            return
        order = self._read_order()
        if order.fault is DiskFault.SLOW and opcode in _SLOW:
            ends_s = time.monotonic() + order.delay_s
            while self._read_order() == order and (left_s := ends_s - time.monotonic()) > 0:
                time.sleep(min(left_s, _POLL_S))
        if self._order.fault is DiskFault.EIO:
            raise OSError(errno.EIO, "the disk is dead")
        if self.is_readonly and opcode in _CHANGES:
            raise OSError(errno.EROFS, "the disk can only be read")

    def take(self, size_bytes: int) -> None:
        """Subtract ``size_bytes`` from the free space of a full disk.

        :raises OSError: ENOSPC, if a full disk has less free space.
        """
        if self.free_bytes is not None and size_bytes > 0:
            if size_bytes > self._free_bytes:
                raise OSError(errno.ENOSPC, "the disk is full")
            self._free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes

    def _read_order(self) -> FaultOrder:
        order = FaultOrder.read(self._orders)
        if order != self._order:
            self._order, self._free_bytes = order, 0
        return order


class _Server:
    """Answers the kernel's requests. A node id identifies a path below ``backing``."""

    def __init__(self, fd: int, backing: str, orders: str) -> None:
        self._fd = fd
        self._backing = backing
        self._gate = _Gate(orders)
        self._paths = {_ROOT: ""}
        self._nodes = {"": _ROOT}
        self._next_node = _ROOT + 1
        #: Open files by node: they have attributes even after their name is removed.
        self._open_files: dict[int, list[int]] = {}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: self._getattr,
            _SETATTR: self._setattr,
            _MKDIR: self._mkdir,
            _UNLINK: self._unlink,
            _RMDIR: self._rmdir,
            _RENAME: lambda node, body: self._rename(node, body, 8),
            _OPEN: self._open,
            _READ: self._read,
            _WRITE: self._write,
            _STATFS: self._statfs,
            _RELEASE: self._release,
            _FSYNC: self._fsync,
            _INIT: self._init,
            _OPENDIR: lambda node, body: _OPEN_OUT.pack(0, 0, 0),
            _READDIR: self._readdir,
            _RELEASEDIR: lambda node, body: b"",
            _FSYNCDIR: lambda node, body: b"",
            _CREATE: self._create,
            _FALLOCATE: self._fallocate,
            _RENAME2: self._rename2,
        }

    def serve(self) -> None:
        """Answer requests until the file system is unmounted."""
        os.set_blocking(self._fd, False)
        held: deque[bytes] = deque()
        while True:
            # The number of held operations is limited by the threads that wait for the disk.
            select.select([self._fd], [], [], _POLL_S if held else None)
            try:
                held.append(os.read(self._fd, _BUFFER_BYTES))
            except OSError as e:
                if e.errno == errno.ENODEV:
                    return
                if e.errno not in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                    raise
            for _ in range(len(held)):
                request = held.popleft()
                if not self._answer(request):
                    held.append(request)

    def _answer(self, request: bytes) -> bool:
        """Answer a request. Return ``False`` if it has to wait."""
        _, opcode, unique, node, self._uid, self._gid, _, _ = _IN_HEADER.unpack_from(request)
        if opcode in _UNANSWERED:
            return True
        code, reply = -errno.ENOSYS, b""
        if opcode in self._answers:
            if self._gate.holds(opcode):
                return False
            try:
                self._gate.enter(opcode)
                code, reply = 0, self._answers[opcode](node, request[_IN_HEADER.size :])
            except OSError as e:
                code = -(e.errno or errno.EIO)
        with contextlib.suppress(FileNotFoundError):
            # ENOENT: the requesting process was killed meanwhile.
            header = _OUT_HEADER.pack(_OUT_HEADER.size + len(reply), code, unique)
            os.write(self._fd, header + reply)
        return True

    def _path(self, node: int, name: bytes = b"") -> str:
        path = self._paths[node]
        if name:
            path = f"{path}/{os.fsdecode(name.split(bytes(1))[0])}"
        return self._backing + path

    def _entry(self, path: str) -> bytes:
        attr = _attr(os.lstat(path))
        key = path.removeprefix(self._backing)
        if key not in self._nodes:
            self._nodes[key] = self._next_node
            self._paths[self._next_node] = key
            self._next_node += 1
        return _ENTRY.pack(self._nodes[key], 0, 0, 0, 0, 0) + attr

    def _forget(self, path: str) -> None:
        self._nodes.pop(path.removeprefix(self._backing), None)

    def _own(self, path: str) -> None:
        """Give a created file to the user of the requesting process."""
        if self._uid != os.geteuid():
            os.chown(path, self._uid, self._gid)

    def _opened(self, node: int, fd: int) -> bytes:
        self._open_files.setdefault(node, []).append(fd)
        return _OPEN_OUT.pack(fd, _UNCACHED_NO_FLUSH, 0)

    def _stat(self, node: int) -> os.stat_result:
        fds = self._open_files.get(node)
        return os.fstat(fds[0]) if fds else os.lstat(self._path(node))

    def _init(self, _node: int, body: bytes) -> bytes:
        (readahead,) = struct.unpack_from("<8xI", body)
        # Flag 1 << 5: writes of more than a page.
        return _INIT_OUT.pack(7, 31, readahead, 1 << 5, 16, 12, _MAX_WRITE, 1, 0, 0, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._path(node, body))

    def _getattr(self, node: int, _body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _attr(self._stat(node))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, handle, size = struct.unpack_from("<I4xQQ", body)
        mode, _, uid, gid = struct.unpack_from("<4I", body, 68)
        path = self._path(node)
        if valid & _SIZE:
            self._truncate(handle if valid & _HANDLE else path, size)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & (_ATIME | _MTIME):
            self._set_times(node, path, valid, body)
        return self._getattr(node, body)

    def _truncate(self, file: int | str, size: int) -> None:
        """Set the size of a file. Extending uses no space of the disk, because it creates a hole.

        :raises OSError: the real file system refused.
        """
        before = os.stat(file).st_blocks
        os.truncate(file, size)
        freed = (before - os.stat(file).st_blocks) * _SECTOR_BYTES
        self._gate.give_back(max(0, freed))

    def _set_times(self, node: int, path: str, valid: int, body: bytes) -> None:
        atime_s, mtime_s, _, atime_ns, mtime_ns = struct.unpack_from("<QQQII", body, 32)
        now_ns, found = time.time_ns(), self._stat(node)
        atime = found.st_atime_ns if not valid & _ATIME else atime_s * 10**9 + atime_ns
        mtime = found.st_mtime_ns if not valid & _MTIME else mtime_s * 10**9 + mtime_ns
        atime = now_ns if valid & _ATIME_NOW else atime
        mtime = now_ns if valid & _MTIME_NOW else mtime
        os.utime(path, ns=(atime, mtime))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", body)
        path = self._path(node, body[8:])
        self._gate.take(_BLOCK_BYTES)
        os.mkdir(path, mode)
        self._own(path)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        path = self._path(node, body)
        freed_bytes = _allocated_bytes(path)
        os.unlink(path)
        self._gate.give_back(freed_bytes)
        self._forget(path)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        path = self._path(node, body)
        os.rmdir(path)
        self._gate.give_back(_BLOCK_BYTES)
        self._forget(path)
        return b""

    def _rename(self, node: int, body: bytes, head: int) -> bytes:
        (to_node,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(bytes(1))[:2]
        source, target = self._path(node, old), self._path(to_node, new)
        freed_bytes = _allocated_bytes(target) if os.path.lexists(target) else 0
        os.rename(source, target)
        self._gate.give_back(freed_bytes)
        before, after = (path.removeprefix(self._backing) for path in (source, target))
        self._forget(target)
        for key in [k for k in self._nodes if k == before or k.startswith(f"{before}/")]:
            moved = after + key.removeprefix(before)
            number = self._nodes.pop(key)
            self._nodes[moved], self._paths[number] = number, moved
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<8xI", body)
        if flags:
            raise OSError(errno.EINVAL, "no special kinds of renames")
        return self._rename(node, body, 16)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        if self._gate.is_readonly and flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "the disk can only be read")
        return self._opened(node, os.open(self._path(node), _server_flags(flags)))

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self._path(node, body[16:])
        self._gate.take(_BLOCK_BYTES)
        fd = os.open(path, _server_flags(flags) | os.O_CREAT, mode)
        self._own(path)
        entry = self._entry(path)
        return entry + self._opened(self._nodes[path.removeprefix(self._backing)], fd)

    def _read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def _write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        self._take_space(handle, offset + size)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _fallocate(self, _node: int, body: bytes) -> bytes:
        handle, offset, size, mode = struct.unpack_from("<QQQI", body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "no special kinds of allocation")
        self._take_space(handle, offset + size)
        os.posix_fallocate(handle, offset, size)
        return b""

    def _take_space(self, handle: int, end: int) -> None:
        """Take the space from a full disk that a file needs to reach ``end``."""
        found = os.fstat(handle)
        held = found.st_blocks * _SECTOR_BYTES
        self._gate.take(-(-max(0, end - held) // _BLOCK_BYTES) * _BLOCK_BYTES)

    def _fsync(self, _node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.fsync(handle)
        return b""

    def _release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.close(handle)
        fds = self._open_files[node]
        fds.remove(handle)
        if not fds:
            del self._open_files[node]
        return b""

    def _statfs(self, _node: int, _body: bytes) -> bytes:
        f = os.statvfs(self._backing)
        free, available, files = f.f_bfree, f.f_bavail, f.f_ffree
        if (free_bytes := self._gate.free_bytes) is not None:
            free = available = free_bytes // f.f_frsize
        counts = (f.f_blocks, free, available, f.f_files, files)
        return struct.pack("<5Q4I24x", *counts, f.f_bsize, 255, f.f_frsize, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        with os.scandir(self._path(node)) as entries:
            for at, entry in enumerate(sorted(entries, key=lambda e: e.name), 1):
                if at <= offset:
                    continue
                name = os.fsencode(entry.name)
                kind = stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
                one = struct.pack("<QQII", entry.inode(), at, len(name), kind >> 12) + name
                one += bytes(-len(one) % 8)
                if len(found) + len(one) > size:
                    break
                found += one
        return found


def _server_flags(flags: int) -> int:
    """Return flags to open a file on the server. The kernel passes offsets and truncates itself."""
    return flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW)


def _allocated_bytes(path: str) -> int:
    """Return the bytes that removing ``path`` frees."""
    found = os.lstat(path)
    return 0 if found.st_nlink > 1 else found.st_blocks * _SECTOR_BYTES + _BLOCK_BYTES


def _attr(found: os.stat_result) -> bytes:
    times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
    return _ATTR.pack(
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *(ns // 10**9 for ns in times),
        *(ns % 10**9 for ns in times),
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        0,
        4096,
        0,
    )


def _mount_as_root(path: str, source: str) -> int:
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40777,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), path.encode(), b"fuse", _NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def _mount_as_user(path: str, source: str) -> int:
    """Mount by fusermount3, and return the descriptor of /dev/fuse that it passes back."""
    command = ("fusermount3", "-o", f"fsname={source},default_permissions", "--", path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run(  # noqa: S603 - our own words, no shell
            command,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            timeout=COMMAND_TIMEOUT_S,
            check=True,
        )
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    return fd


def _end_with_owner(path: str) -> None:
    """End when the parent process closes the other end of the standard input."""
    while os.read(sys.stdin.fileno(), 1):
        continue
    try:
        detach(path)
    finally:
        os._exit(0)


def _main(backing: str, path: str, orders: str, source: str) -> None:
    # Opened before the mount, because the backing directory may be the mount point itself.
    below = os.open(backing, os.O_RDONLY | os.O_DIRECTORY)
    os.umask(0)
    mount = _mount_as_root if os.geteuid() == 0 else _mount_as_user
    try:
        fd = mount(path, source)
    except (OSError, subprocess.SubprocessError) as e:
        sys.exit(str(e))
    threading.Thread(target=_end_with_owner, args=(path,), daemon=True).start()
    _Server(fd, f"/proc/self/fd/{below}/.", orders).serve()


if __name__ == "__main__":
    _main(*sys.argv[1:])
