"""A disk that is slow: a file system of our own (FUSE) that shows a directory, and takes its time.

:func:`slow_disk` mounts one; while its ``delay_s`` is set, each write, sync, create and unlink on
it takes that long, and reads are as fast as ever. Nothing of that is known to who uses the disk.

The server is a process of its own, one operation after the other, that speaks the kernel's protocol
(linux/fuse.h, 7.31) with no library. It ends with the mount, and the mount with the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kraftjbod.testing import mounts

_IN_HEADER: Final = struct.Struct("<IIQQIIII")
_OUT_HEADER: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHII24x")
_MAX_WRITE: Final = 128 * 1024
_BUFFER_BYTES: Final = _MAX_WRITE + 64 * 1024
_ROOT: Final = 1
_START_TIMEOUT_S: Final = 20.0
_SIZE, _MODE, _UID, _GID = 8, 1, 2, 4

_FORGETS: Final = frozenset({2, 42})
_INTERRUPT: Final = 36


class SlowDisk:
    """A mounted one, for the test."""

    def __init__(self, path: str, control: Path) -> None:
        self.path = path
        self._control = control

    def set_delay(self, delay_s: float) -> None:
        """From the next operation on."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(str(delay_s))
        fresh.rename(self._control)


def why_not() -> str | None:
    """The reason why this machine cannot have one, or None if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return None if os.path.exists("/dev/fuse") else "there is no /dev/fuse"


@contextlib.contextmanager
def slow_disk(home: Path) -> Iterator[SlowDisk]:
    """Over ``home``/backing, mounted where mounts.reap() finds it; fast at first."""
    backing, control = home / "backing", home / "delay"
    backing.mkdir()
    backing.chmod(0o777)
    control.write_text("0")
    with mounts.empty_mount_point() as path:
        command = [
            sys.executable,
            "-m",
            "kraftjbod.testing.fault_fs",
            str(backing),
            path,
            str(control),
        ]
        server = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - no shell
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not os.path.ismount(path):
                assert server.poll() is None, f"the server ended with {server.returncode}"
                assert time.monotonic() < deadline, "the file system was not mounted"
                time.sleep(0.02)
            yield SlowDisk(path, control)
        finally:
            # Nothing waits for a disk that nobody serves any more.
            server.kill()
            server.wait()


class _Server:
    """Answers the kernel. Nodes are numbers for paths below ``backing``."""

    def __init__(self, fd: int, backing: str, control: str) -> None:
        self._fd = fd
        self._backing = backing
        self._control = control
        self._paths = {_ROOT: ""}
        self._nodes = {"": _ROOT}
        self._next_node = _ROOT + 1
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: self._getattr,
            4: self._setattr,
            9: self._mkdir,
            10: self._unlink,
            11: self._rmdir,
            12: lambda node, body: self._rename(node, body, 8),
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._fsync,
            25: lambda node, body: b"",
            26: self._init,
            27: lambda node, body: struct.pack("<QIi", 0, 0, 0),
            28: self._readdir,
            29: lambda node, body: b"",
            30: lambda node, body: self._wait(),
            35: self._create,
            45: lambda node, body: self._rename(node, body, 16),
        }

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, _BUFFER_BYTES)
            except OSError as e:
                if e.errno == errno.ENODEV:
                    return  # Unmounted.
                if e.errno in (errno.EINTR, errno.ENOENT):
                    continue
                raise
            _, opcode, unique, node, self._uid, self._gid, _, _ = _IN_HEADER.unpack_from(request)
            if opcode in _FORGETS or opcode == _INTERRUPT:
                continue
            code, reply = -errno.ENOSYS, b""
            if opcode in self._answers:
                try:
                    code, reply = 0, self._answers[opcode](node, request[_IN_HEADER.size :])
                except OSError as e:
                    code = -(e.errno or errno.EIO)
            with contextlib.suppress(FileNotFoundError):
                # ENOENT: whoever asked was killed meanwhile.
                header = _OUT_HEADER.pack(_OUT_HEADER.size + len(reply), code, unique)
                os.write(self._fd, header + reply)

    def _wait(self) -> bytes:
        with open(self._control, encoding="ascii") as file:
            time.sleep(float(file.read()))
        return b""

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

    def _forget(self, key: str) -> None:
        self._nodes.pop(key, None)

    def _init(self, _node: int, body: bytes) -> bytes:
        (readahead,) = struct.unpack_from("<8xI", body)
        # Flag 1 << 5: writes of more than a page.
        return _INIT_OUT.pack(7, 31, readahead, 1 << 5, 16, 12, _MAX_WRITE, 1, 0, 0, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._path(node, body))

    def _getattr(self, node: int, body: bytes) -> bytes:
        flags, fh = struct.unpack_from("<I4xQ", body)
        found = os.fstat(fh) if flags & 1 else os.lstat(self._path(node))
        return struct.pack("<QII", 0, 0, 0) + _attr(found)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, fh, size = struct.unpack_from("<I4xQQ", body)
        mode, _, uid, gid = struct.unpack_from("<4I", body, 68)
        path = self._path(node)
        if valid & _SIZE:
            os.truncate(fh if valid & 64 else path, size)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        return struct.pack("<QII", 0, 0, 0) + _attr(os.fstat(fh) if valid & 64 else os.lstat(path))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", body)
        path = self._path(node, body[8:])
        os.mkdir(path, mode)
        os.chown(path, self._uid, self._gid)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        self._wait()
        path = self._path(node, body)
        os.unlink(path)
        self._forget(path.removeprefix(self._backing))
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        path = self._path(node, body)
        os.rmdir(path)
        self._forget(path.removeprefix(self._backing))
        return b""

    def _rename(self, node: int, body: bytes, head: int) -> bytes:
        (to_node,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(bytes(1))[:2]
        source, target = self._path(node, old), self._path(to_node, new)
        os.rename(source, target)
        before, after = (path.removeprefix(self._backing) for path in (source, target))
        self._forget(after)
        for key in [k for k in self._nodes if k == before or k.startswith(f"{before}/")]:
            moved = after + key.removeprefix(before)
            number = self._nodes.pop(key)
            self._nodes[moved], self._paths[number] = number, moved
        return b""

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        fd = os.open(self._path(node), flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        return struct.pack("<QIi", fd, 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        self._wait()
        flags, mode = struct.unpack_from("<II", body)
        path = self._path(node, body[16:])
        fd = os.open(path, flags | os.O_CREAT, mode)
        os.fchown(fd, self._uid, self._gid)
        return self._entry(path) + struct.pack("<QIi", fd, 0, 0)

    def _read(self, _node: int, body: bytes) -> bytes:
        fh, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(fh, size, offset)

    def _write(self, _node: int, body: bytes) -> bytes:
        self._wait()
        fh, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(fh, body[40 : 40 + size], offset), 0)

    def _fsync(self, _node: int, body: bytes) -> bytes:
        return self._wait()

    def _release(self, _node: int, body: bytes) -> bytes:
        (fh,) = struct.unpack_from("<Q", body)
        os.close(fh)
        return b""

    def _statfs(self, _node: int, _body: bytes) -> bytes:
        f = os.statvfs(self._backing)
        counts = (f.f_blocks, f.f_bfree, f.f_bavail, f.f_files, f.f_ffree)
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


def _main(backing: str, path: str, control: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40777,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    source = (mounts.PREFIX + "fuse").encode()
    if libc.mount(source, path.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {path}")
    _Server(fd, backing, control).serve()


if __name__ == "__main__":
    _main(*sys.argv[1:])
