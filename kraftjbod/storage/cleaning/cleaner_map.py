"""PURE. ``CleanerMap``: the latest offset of each key in the part of a log that is being compacted.

* Memory is fixed: 24 bytes for an entry, as much as the map was given and never more. A map that
  is full takes no more records, and what is cleaned ends with the last one that it took.
* Keys are known by their 128-bit md5 hash, as in Kafka: two different keys are never expected to
  share one.
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
#: Beyond this, the search for a free place takes too long (Kafka: io.buffer.load.factor).
_LOAD_FACTOR: Final = 0.9
_NO_OFFSET: Final = -1
_md5: Final = partial(hashlib.md5, usedforsecurity=False)


class CleanerMap:
    """Hash of a key to offset, in one block of memory with open addressing."""

    __slots__ = ("_max_entries", "_slots", "_table", "entries", "latest_offset")

    def __init__(self, *, max_bytes: int, expected_keys: int) -> None:
        """Space for ``expected_keys``, which is no promise, if ``max_bytes`` allow it."""
        wanted = int(expected_keys / _LOAD_FACTOR) + 2
        self._slots = max(2, min(max_bytes // ENTRY_BYTES, wanted))
        self._max_entries = max(1, int(self._slots * _LOAD_FACTOR))
        #: Offsets are kept plus one, so that zeros mean that nothing is there.
        self._table = bytearray(self._slots * ENTRY_BYTES)
        self.entries = 0
        #: Everything up to here is in the map; -1 before the first record.
        self.latest_offset = _NO_OFFSET

    def put(self, key: bytes, offset: int) -> bool:
        """``key`` was seen at ``offset``, above all others so far; False if the map is full."""
        digest = _md5(key).digest()
        at, found = self._find(digest)
        if not found:
            if self.entries >= self._max_entries:
                return False
            self.entries += 1
        _ENTRY.pack_into(self._table, at, digest, offset + 1)
        self.latest_offset = offset
        return True

    def pass_over(self, offset: int) -> None:
        """Up to ``offset`` there is nothing more to put."""
        self.latest_offset = max(self.latest_offset, offset)

    def latest(self, key: bytes) -> int:
        """The last offset that ``key`` was put with; -1 if it never was."""
        at, found = self._find(_md5(key).digest())
        if not found:
            return _NO_OFFSET
        (kept,) = _OFFSET.unpack_from(self._table, at + _HASH_BYTES)
        return int(kept) - 1

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """Where ``digest`` is, or has to go, and whether it is there."""
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
