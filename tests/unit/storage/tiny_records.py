"""Hostile batches with very many very small records."""

from __future__ import annotations

import struct

from kraftjbod.protocol.record_batch import HEADER_BYTES, Compression, compute_crc
from kraftjbod.protocol.records import Record, build_batch, compress_body, encode_varint

#: Length, attributes, both deltas, no key, no value, no headers.
RECORD_OF_NOTHING = bytes([12, 0, 0, 0, 1, 1, 0])


def keyed_records(count: int) -> bytes:
    """Return records with the same key and consecutive offset deltas."""
    rests = (b"\0\0" + encode_varint(delta) + b"\x02k\x00\x00" for delta in range(count))
    return b"".join(bytes([2 * len(rest)]) + rest for rest in rests)


def tiny(
    count: int,
    *,
    compression: Compression,
    base: int = 0,
    newest: int = 500,
    is_keyed: bool = False,
) -> bytes:
    """Build a batch whose header has a new timestamp, and whose ``count`` records do not."""
    header = bytearray(build_batch([Record(timestamp_ms=newest)], base_offset=base)[:HEADER_BYTES])
    body = keyed_records(count) if is_keyed else RECORD_OF_NOTHING * count
    packed = compress_body(compression, body)
    struct.pack_into(">i", header, 8, HEADER_BYTES - 12 + len(packed))
    struct.pack_into(">h", header, 21, compression)
    struct.pack_into(">i", header, 23, count - 1)
    struct.pack_into(">q", header, 27, 0)
    struct.pack_into(">i", header, 57, count)
    batch = header + packed
    struct.pack_into(">I", batch, 17, compute_crc(batch, 0, len(batch)))
    return bytes(batch)
