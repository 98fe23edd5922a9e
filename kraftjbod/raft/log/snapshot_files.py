"""DISK. Snapshots of the metadata as files: written, checked and read piece by piece.

If entries of the log name the voters, the file contains the voters at the snapshot's end before its
payload. A file without voters has the format of older versions.

The CRC in a file covers the whole file. Reading a piece needs a CRC of that piece: this process
keeps one for each 64 KiB, computed when it wrote the file or checked the whole file. So the format
did not change, and bytes that changed on the disk since are detected.

A :class:`SnapshotPart` may be written concurrently with the log's appends, because no other code
uses its file. No snapshot is held in memory as a whole.
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile

SNAPSHOT_FILE: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
PART_SUFFIX: Final = ".part"
#: Maximum size of a piece that is read, checked or sent at once.
SNAPSHOT_PIECE_BYTES: Final = 1024 * 1024
#: Size of a block of the payload; a gigabyte has 16,384 blocks.
BLOCK_BYTES: Final = 64 * 1024
#: Length and CRC-32 of a snapshot's payload, which follows.
_SNAPSHOT_HEADER: Final = struct.Struct(">8sQI")
_SNAPSHOT_MAGIC: Final = b"KJB-SNAP"
#: With voters: their length and encoding follow, and the CRC covers both.
_MAGIC_WITH_VOTERS: Final = b"KJB-SNPV"
_VOTERS_LENGTH: Final = struct.Struct(">I")
_MAX_VOTERS_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An intact snapshot of the state up to and including ``last_offset``."""

    last_offset: int
    term: int
    size_bytes: int
    voters: bytes = b""
    """An encoded ``VoterSet``; empty if no entry of the log names the voters."""
    crc: int
    """CRC of ``voters`` and the payload, as stored in the file."""
    block_crcs: Sequence[int] = field(repr=False)
    """CRC of each block (:data:`BLOCK_BYTES`) of the payload."""

    @property
    def file_name(self) -> str:
        return snapshot_file_name(self.last_offset, self.term)


def snapshot_file_name(last_offset: int, term: int) -> str:
    return f"{last_offset + 1:020d}-{term:010d}.checkpoint"


class _RunningCrcs:
    """CRCs of a payload that is passed in pieces: one of the whole, and one of each block."""

    def __init__(self, voters_block: bytes) -> None:
        self.whole = zlib.crc32(voters_block)
        self._blocks = array("L")
        self._open = 0
        self._open_bytes = 0

    def add(self, piece: bytes | bytearray) -> None:
        self.whole = zlib.crc32(piece, self.whole)
        left = memoryview(piece)
        while left:
            taken = left[: BLOCK_BYTES - self._open_bytes]
            self._open = zlib.crc32(taken, self._open)
            self._open_bytes += len(taken)
            if self._open_bytes == BLOCK_BYTES:
                self._close_block()
            left = left[len(taken) :]

    def blocks(self) -> Sequence[int]:
        """Return the CRCs of the blocks. Call it after the last piece."""
        if self._open_bytes:
            self._close_block()
        return self._blocks

    def _close_block(self) -> None:
        self._blocks.append(self._open)
        self._open = self._open_bytes = 0


class SnapshotPart:
    """A snapshot that is written piece by piece, in the directory's flush queue.

    The first :meth:`append_piece`, or :meth:`finish`, creates the file. A failed operation removes
    the file and makes the part unusable.
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
        self._crcs = _RunningCrcs(self._block)
        self._file: VfsFile | None = None
        self.size_bytes = 0

    def append_piece(self, piece: bytes) -> None:
        with FailsAs(OpKind.CHECKPOINT), Undoing(self.discard):
            position = _SNAPSHOT_HEADER.size + len(self._block) + self.size_bytes
            self._opened().write_at(position, [piece])
        self._crcs.add(piece)
        self.size_bytes += len(piece)

    @property
    def last_offset(self) -> int:
        return self._last_offset

    @property
    def crc(self) -> int:
        """CRC of the voters and of the payload that was appended so far."""
        return self._crcs.whole

    def finish(self) -> Snapshot:
        """Complete the file and make it durable. Return the snapshot.

        :meth:`RaftLogStore.install_snapshot` renames it to its final name.
        """
        magic = _MAGIC_WITH_VOTERS if self._block else _SNAPSHOT_MAGIC
        header = _SNAPSHOT_HEADER.pack(magic, self.size_bytes, self.crc)
        # Only the sync counts as a flush.
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
            crc=self.crc,
            block_crcs=self._crcs.blocks(),
        )

    def discard(self) -> None:
        """Close and remove the file, finished or not. Further calls have no effect."""
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


def read_payload(vfs: Vfs, path: str, snapshot: Snapshot, position: int, size: int) -> bytes:
    """Return at most ``size`` bytes of the payload of ``snapshot``, whose file is ``path``.

    :raises CorruptRecordError: the bytes changed since they were written or checked.
    """
    if position >= snapshot.size_bytes or size <= 0:
        return b""
    begin = position - position % BLOCK_BYTES
    end = min(position + size + -(position + size) % BLOCK_BYTES, snapshot.size_bytes)
    file = vfs.open(path, OpenMode.READ)
    try:
        blocks = memoryview(file.read_at(_payload_position(snapshot.voters) + begin, end - begin))
    finally:
        file.close()
    for at in range(0, end - begin, BLOCK_BYTES):
        crc = snapshot.block_crcs[(begin + at) // BLOCK_BYTES]
        if zlib.crc32(blocks[at : at + BLOCK_BYTES]) != crc:
            raise CorruptRecordError(f"{path} is damaged after byte {begin + at} of its payload")
    return bytes(blocks[position - begin : position - begin + size])


def load_snapshot(file: VfsFile, last_offset: int, term: int) -> Snapshot | None:
    """Read and check the whole snapshot in ``file``; None if it is incomplete or damaged."""
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
    found, position = _RunningCrcs(block), 0
    while position < size_bytes:
        piece = file.read_at(begin + position, SNAPSHOT_PIECE_BYTES)
        if not piece:
            return None
        found.add(piece)
        position += len(piece)
    if found.whole != crc:
        return None
    return Snapshot(
        last_offset=last_offset,
        term=term,
        size_bytes=int(size_bytes),
        voters=voters,
        crc=int(crc),
        block_crcs=found.blocks(),
    )


def _read_voters(file: VfsFile) -> bytes | None:
    """Return the encoded voters; None if the file is too short or their length is impossible."""
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
