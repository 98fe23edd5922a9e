"""DISK. Snapshots of the metadata as files: written piece by piece, checked and read likewise.

Where entries of the log named the voters, those in force at the snapshot's end stand before its
payload; a file without them is as older versions write and read it.

A :class:`SnapshotPart` may be written beside the log's appends, because nobody else knows its file.
No snapshot is held in memory as a whole.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.storage.dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile

SNAPSHOT_FILE: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
PART_SUFFIX: Final = ".part"
#: Snapshots are read, checked and sent in pieces of that size at most.
SNAPSHOT_PIECE_BYTES: Final = 1024 * 1024
#: Length and CRC-32 of a snapshot's payload, which follows.
_SNAPSHOT_HEADER: Final = struct.Struct(">8sQI")
_SNAPSHOT_MAGIC: Final = b"KJB-SNAP"
#: With voters: the length of what says them follows, and that itself, which the CRC covers too.
_MAGIC_WITH_VOTERS: Final = b"KJB-SNPV"
_VOTERS_LENGTH: Final = struct.Struct(">I")
_MAX_VOTERS_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole state up to and with ``last_offset``."""

    last_offset: int
    term: int
    size_bytes: int
    voters: bytes = b""
    """A ``VoterSet``, encoded; empty if no entry of the log has named the voters."""

    @property
    def file_name(self) -> str:
        return f"{self.last_offset + 1:020d}-{self.term:010d}.checkpoint"


class SnapshotPart:
    """A snapshot that is written piece by piece, in the flush queue.

    The file is created by the first :meth:`append`, or by :meth:`finish`. A failed operation
    removes the file, and the part is of no use then.
    """

    def __init__(
        self, vfs: Vfs, path: str, last_offset: int, term: int, voters: bytes = b""
    ) -> None:
        self._vfs = vfs
        self._path = path
        self._last_offset = last_offset
        self._term = term
        self._voters = voters
        self._block = _voters_block(voters)
        self._crc = zlib.crc32(self._block)
        self._file: VfsFile | None = None
        self.size_bytes = 0

    def append(self, piece: bytes) -> None:
        with FailsAs(OpKind.CHECKPOINT), Undoing(self.discard):
            position = _SNAPSHOT_HEADER.size + len(self._block) + self.size_bytes
            self._opened().write_at(position, [piece])
        self._crc = zlib.crc32(piece, self._crc)
        self.size_bytes += len(piece)

    def finish(self) -> Snapshot:
        """Make it durable; :meth:`RaftLogStore.install_snapshot` gives it its name."""
        magic = _MAGIC_WITH_VOTERS if self._block else _SNAPSHOT_MAGIC
        header = _SNAPSHOT_HEADER.pack(magic, self.size_bytes, self._crc)
        # Of all this only the sync is a flush.
        with FailsAs(OpKind.CHECKPOINT), Undoing(self.discard):
            file = self._opened()
            file.write_at(0, [header + self._block])
            with FailsAs(OpKind.FLUSH):
                file.sync()
        self._close()
        return Snapshot(
            last_offset=self._last_offset,
            term=self._term,
            size_bytes=self.size_bytes,
            voters=self._voters,
        )

    def discard(self) -> None:
        """Close and remove the file, finished or not; call again without effect."""
        self._close()
        self._vfs.unlink_if_exists(self._path)

    def _opened(self) -> VfsFile:
        if self._file is None:
            self._file = self._vfs.open(self._path, OpenMode.CREATE)
            self._file.truncate(0)
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_payload(vfs: Vfs, path: str, position: int, size: int, voters: bytes = b"") -> bytes:
    """:param voters: what the file says before its payload."""
    file = vfs.open(path, OpenMode.READ)
    chunk = bytes(file.read_at(_payload_position(voters) + position, size))
    file.close()
    return chunk


class SoundSnapshot(NamedTuple):
    """What a file that is whole and right holds."""

    size_bytes: int
    voters: bytes


def sound_snapshot(file: VfsFile) -> SoundSnapshot | None:
    """Of a snapshot file; None if it is not whole and right."""
    header = file.read_at(0, _SNAPSHOT_HEADER.size)
    if len(header) < _SNAPSHOT_HEADER.size:
        return None
    magic, size_bytes, crc = _SNAPSHOT_HEADER.unpack(header)
    voters = _read_voters(file) if magic == _MAGIC_WITH_VOTERS else b""
    if voters is None or magic not in (_SNAPSHOT_MAGIC, _MAGIC_WITH_VOTERS):
        return None
    block = _voters_block(voters)
    begin = _SNAPSHOT_HEADER.size + len(block)
    if file.size() != begin + size_bytes:
        return None
    found_crc, position = zlib.crc32(block), 0
    while position < size_bytes:
        piece = file.read_at(begin + position, SNAPSHOT_PIECE_BYTES)
        found_crc = zlib.crc32(piece, found_crc)
        position += len(piece)
    return SoundSnapshot(int(size_bytes), voters) if found_crc == crc else None


def _read_voters(file: VfsFile) -> bytes | None:
    """None if they cannot be there."""
    length = file.read_at(_SNAPSHOT_HEADER.size, _VOTERS_LENGTH.size)
    if len(length) < _VOTERS_LENGTH.size:
        return None
    (size,) = _VOTERS_LENGTH.unpack(length)
    if not 0 < size <= _MAX_VOTERS_BYTES:
        return None
    return bytes(file.read_at(_SNAPSHOT_HEADER.size + _VOTERS_LENGTH.size, size))


def _payload_position(voters: bytes) -> int:
    return _SNAPSHOT_HEADER.size + len(_voters_block(voters))


def _voters_block(voters: bytes) -> bytes:
    return _VOTERS_LENGTH.pack(len(voters)) + voters if voters else b""
