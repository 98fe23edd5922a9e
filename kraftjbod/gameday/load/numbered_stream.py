"""PURE. Numbered records whose keys contain the name of the run."""

from __future__ import annotations

from typing import Final

from kraftjbod.protocol.records import Record

_FILLING: Final = b"the quick brown fox jumps over the lazy dog; "


class NumberedStream:
    """Records of a load whose keys and values tell their number.

    Keys are ``<run>:<number>``. Values are the key and padding, cut to ``size_bytes``.
    """

    def __init__(self, run: str, *, size_bytes: int) -> None:
        self._prefix = f"{run}:".encode()
        self._size_bytes = size_bytes
        self._filling = _FILLING * (size_bytes // len(_FILLING) + 1)

    def key(self, index: int) -> bytes:
        return b"%s%d" % (self._prefix, index)

    def value(self, index: int) -> bytes:
        return (self.key(index) + b" " + self._filling)[: self._size_bytes]

    def records(self, start: int, count: int, timestamp_ms: int) -> list[Record]:
        return [
            Record(key=self.key(index), value=self.value(index), timestamp_ms=timestamp_ms)
            for index in range(start, start + count)
        ]

    def owns(self, key: bytes) -> bool:
        return key.startswith(self._prefix)
