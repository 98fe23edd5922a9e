"""PURE. ``CleanerMap``: the latest offset of each key in the part of a log that is being compacted.

* Memory is fixed: 24 bytes per entry, up to the given limit. A full map refuses further records,
  and the pass cleans up to the last record in the map.
* Keys are represented by their 128-bit MD5 hash. Hash collisions are ignored, as in Kafka.
"""

from __future__ import annotations

import hashlib
import struct
from functools import partial
from typing import Final

_ENTRY: Final = struct.Struct(">16sQ")
ENTRY_BYTES: Final = _ENTRY.size
_OFFSET: Final = struct.Struct(">Q")
_HASH_BYTES: Final = 16
#: Above this load the search for a free slot takes too long (Kafka: io.buffer.load.factor).
_LOAD_FACTOR: Final = 0.9
_NO_OFFSET: Final = -1
_md5: Final = partial(hashlib.md5, usedforsecurity=False)


class CleanerMap:
    """Open-addressing map from the hash of a key to its latest offset, in one block of memory."""

    __slots__ = ("_max_entries", "_slots", "_table", "entries", "latest_offset")

    def __init__(self, *, max_bytes: int, expected_keys: int) -> None:
        """Allocate slots for about ``expected_keys`` keys, but at most ``max_bytes``."""
        wanted = int(expected_keys / _LOAD_FACTOR) + 2
        self._slots = max(2, min(max_bytes // ENTRY_BYTES, wanted))
        self._max_entries = max(1, int(self._slots * _LOAD_FACTOR))
        #: Offsets are stored plus one, so that zero means an empty slot.
        self._table = bytearray(self._slots * ENTRY_BYTES)
        self.entries = 0
        #: The map contains all records up to this offset; -1 before the first record.
        self.latest_offset = _NO_OFFSET

    def put(self, key: bytes, offset: int) -> bool:
        """Set the latest offset of ``key``. Successive calls, for any keys, have rising offsets.

        :return: False if the map is full; nothing was changed then.
        """
        digest = _md5(key).digest()
        at, found = self._find(digest)
        if not found:
            if self.entries >= self._max_entries:
                return False
            self.entries += 1
        _ENTRY.pack_into(self._table, at, digest, offset + 1)
        self.latest_offset = offset
        return True

    def record_complete_up_to(self, offset: int) -> None:
        """Record that the keys of all records up to and including ``offset`` are in the map."""
        self.latest_offset = max(self.latest_offset, offset)

    def latest(self, key: bytes) -> int:
        """Return the latest offset of ``key``; -1 if it is not in the map."""
        at, found = self._find(_md5(key).digest())
        if not found:
            return _NO_OFFSET
        (kept,) = _OFFSET.unpack_from(self._table, at + _HASH_BYTES)
        return int(kept) - 1

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """Return the position of the slot with ``digest``, or of a free slot, and whether it has
        the digest.
        """
        table, size = self._table, len(self._table)
        at = int.from_bytes(digest[:8], "big") % self._slots * ENTRY_BYTES
        while True:
            hash_end = at + _HASH_BYTES
            if table[at:hash_end] == digest:
                return at, True
            if table[hash_end : at + ENTRY_BYTES] == _FREE:
                return at, False
            at += ENTRY_BYTES
            if at == size:
                at = 0


_FREE: Final = bytes(8)
