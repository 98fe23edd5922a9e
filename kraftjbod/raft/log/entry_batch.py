"""PURE. Encoding of an entry of the metadata log as a v2 record batch with one record.

* The record's value is the payload.
* The key is the offset of the first entry of the same append. Entries before that offset were
  durable when this entry was written. A bad batch before that offset is therefore damage, not
  an unfinished write.
* A byte after the offset in the key names the kind of an entry that is not data.
* The header ``term`` repeats the leader epoch, which the CRC of a batch does not cover.
* The header ``committed`` is the known committed offset when the entry was written.

Older versions neither write nor read the two headers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol.record_batch import check_crc, read_header
from kraftjbod.protocol.records import Record, build_batch, read_records
from kraftjbod.raft.machine.messages import Entry, EntryKind

_KEY: Final = struct.Struct(">q")
_TERM: Final = struct.Struct(">i")
_COMMITTED: Final = struct.Struct(">q")
_KINDS: Final = {b"": EntryKind.DATA, bytes([EntryKind.VOTERS.value]): EntryKind.VOTERS}


class StoredEntry(NamedTuple):
    """An entry that was read from a segment, with the other values of its batch.

    ``append_start`` is the offset of the first entry of the same append. ``size_bytes`` is the size
    of the batch.
    """

    entry: Entry
    append_start: int
    size_bytes: int
    committed_offset: int
    """-1 if the batch has no such value."""


def encode_entry_batch(
    entry: Entry, *, append_start: int, committed_offset: int, wall_ms: int
) -> bytes:
    """Return the batch of ``entry``.

    :param append_start: offset of the first entry of the same append.
    :param committed_offset: a lower bound of the committed offset.
    :param wall_ms: timestamp of the batch.
    """
    key = _KEY.pack(append_start)
    if entry.kind is not EntryKind.DATA:
        key += bytes([entry.kind.value])
    headers = (("term", _TERM.pack(entry.term)), ("committed", _COMMITTED.pack(committed_offset)))
    record = Record(key=key, value=entry.payload, timestamp_ms=wall_ms, headers=headers)
    return build_batch([record], base_offset=entry.offset, leader_epoch=entry.term)


def decode_entry_batch(data: bytes | bytearray, position: int, offset: int) -> StoredEntry:
    """Return the entry with the offset ``offset``, whose batch begins at ``position``.

    :raises CorruptRecordError: no complete batch of this entry with a correct CRC is there.
    """
    header = read_header(data, position)
    if header.size_bytes > len(data) - position:
        raise CorruptRecordError(f"the batch at {position} is incomplete")
    check_crc(data, position, header)
    if header.base_offset != offset:
        # The CRC does not cover the offset.
        raise CorruptRecordError(f"expected entry {offset}, found entry {header.base_offset}")
    record = next(read_records(data, position))
    key = bytes(record.key or b"")
    kind = _KINDS.get(key[_KEY.size :])
    if len(key) < _KEY.size or kind is None or record.value is None:
        raise CorruptRecordError(f"the batch at {position} is no entry of a metadata log")
    (append_start,) = _KEY.unpack_from(key)
    term, committed_offset = header.partition_leader_epoch, -1
    for name, value in record.headers:
        if name == "term" and value != _TERM.pack(term):
            raise CorruptRecordError(f"entry {offset} is not of term {term}")
        if name == "committed" and value is not None:
            (committed_offset,) = _COMMITTED.unpack(value)
    entry = Entry(offset, term, bytes(record.value), kind)
    return StoredEntry(entry, append_start, header.size_bytes, committed_offset)
