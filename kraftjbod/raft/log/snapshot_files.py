"""DISK. Snapshots of the metadata as files: written piece by piece, checked and read likewise.

A :class:`SnapshotPart` may be written beside the log's appends, because nobody else knows its file.
No snapshot is held in memory as a whole.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from kraftjbod.storage.dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile

SNAPSHOT_FILE: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
PART_SUFFIX: Final = ".part"
#: Snapshots are read, checked and sent in pieces of that size at most.
SNAPSHOT_PIECE_BYTES: Final = 1024 * 1024
#: Length and CRC-32 of a snapshot's payload, which follows.
_SNAPSHOT_HEADER: Final = struct.Struct(">8sQI")
_SNAPSHOT_MAGIC: Final = b"KJB-SNAP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole state up to and with ``last_offset``."""

    last_offset: int
    term: int
    size_bytes: int

    @property
    def file_name(self) -> str:
        return f"{self.last_offset + 1:020d}-{self.term:010d}.checkpoint"


class SnapshotPart:
    """A snapshot on its way to the disk, piece by piece, in the flush queue.

    What fails leaves no file, and nothing more may be done then.
    """

    def __init__(self, vfs: Vfs, path: str, last_offset: int, term: int) -> None:
        self._vfs = vfs
        self._path = path
        self._last_offset = last_offset
        self._term = term
        self._crc = 0
        self.size_bytes = 0
        # Of all this only the sync is a flush.
        with FailsAs(OpKind.CHECKPOINT):
            self._file = vfs.open(path, OpenMode.CREATE)
            with Undoing(self.discard):
                self._file.truncate(0)

    def append(self, piece: bytes) -> None:
        with FailsAs(OpKind.CHECKPOINT), Undoing(self.discard):
            self._file.write_at(_SNAPSHOT_HEADER.size + self.size_bytes, [piece])
        self._crc = zlib.crc32(piece, self._crc)
        self.size_bytes += len(piece)

    def finish(self) -> Snapshot:
        """Make it durable; :meth:`RaftLogStore.install_snapshot` gives it its name."""
        header = _SNAPSHOT_HEADER.pack(_SNAPSHOT_MAGIC, self.size_bytes, self._crc)
        with FailsAs(OpKind.CHECKPOINT), Undoing(self.discard):
            self._file.write_at(0, [header])
            with FailsAs(OpKind.FLUSH):
                self._file.sync()
        self._file.close()
        return Snapshot(last_offset=self._last_offset, term=self._term, size_bytes=self.size_bytes)

    def discard(self) -> None:
        self._file.close()
        self._vfs.unlink_if_exists(self._path)


def read_payload(vfs: Vfs, path: str, position: int, size: int) -> bytes:
    file = vfs.open(path, OpenMode.READ)
    chunk = bytes(file.read_at(_SNAPSHOT_HEADER.size + position, size))
    file.close()
    return chunk


def sound_payload_bytes(file: VfsFile) -> int | None:
    """How long the payload of a snapshot file is; None if it is not whole and right."""
    header = file.read_at(0, _SNAPSHOT_HEADER.size)
    if len(header) < _SNAPSHOT_HEADER.size:
        return None
    magic, size_bytes, crc = _SNAPSHOT_HEADER.unpack(header)
    if magic != _SNAPSHOT_MAGIC or file.size() != _SNAPSHOT_HEADER.size + size_bytes:
        return None
    found_crc, position = 0, 0
    while position < size_bytes:
        piece = file.read_at(_SNAPSHOT_HEADER.size + position, SNAPSHOT_PIECE_BYTES)
        found_crc = zlib.crc32(piece, found_crc)
        position += len(piece)
    return int(size_bytes) if found_crc == crc else None
