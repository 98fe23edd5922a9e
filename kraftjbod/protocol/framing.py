"""PURE. Whole frames out of a stream of bytes: four bytes of length, big-endian, then the frame.

Both wire protocols are framed like this.

:class:`FrameSplitter` says where the next bytes shall be put (``get_buffer``) and gets how many
came (``buffer_updated``), as ``asyncio.BufferedProtocol`` wants it. So the body of a large frame
is read from the socket straight into its final place; small frames are taken from a scratch buffer
that all connections of a thread can share, because a loop fills it and says so in one go.

Only a frame that is half there costs memory, by what has arrived of it and not by what it claims.
"""

from __future__ import annotations

import struct
from typing import Final

from kraftjbod.core.errors import RemoteProtocolError

#: What is sent or written, as it lies in memory.
Buffer = bytes | bytearray | memoryview
Frame = bytes | memoryview

#: Memory for small frames; a frame that fits is copied once, a larger one is read in place.
SCRATCH_BYTES: Final = 64 * 1024
#: Memory for a large frame, as a multiple of what is there of it; the first is the most, so that
#: what is sent every day is not moved on its way.
FIRST_GROWTH: Final = 16
_GROWTH: Final = 4
_LEAST_FREE_BYTES: Final = 1024
_MOST_GROWTH_BYTES: Final = 32 * 1024 * 1024

_LENGTH: Final = struct.Struct(">i")


class FrameSplitter:
    """Splits one direction of one connection. Any error ends it."""

    def __init__(self, *, max_frame_bytes: int, scratch: bytearray | None = None) -> None:
        """:param scratch: filled between ``get_buffer`` and ``buffer_updated`` only, so that all
        splitters of a thread may share one; one of its own if not given."""
        self._max_frame_bytes = max_frame_bytes
        self._scratch = bytearray(SCRATCH_BYTES) if scratch is None else scratch
        self._scratch_view = memoryview(self._scratch)
        assert len(self._scratch) > _LENGTH.size, self._scratch
        #: The beginning of a small frame that is not yet whole, or of its length.
        self._pending = b""
        #: The large frame being read; it is ``_large_bytes`` long when whole, and holds as many
        #: as ``_filled`` so far. None while frames fit the scratch buffer.
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._filled = 0

    @property
    def held_bytes(self) -> int:
        """Memory that a frame which is half there takes now; 0 between frames."""
        return len(self._pending) if self._large is None else len(self._large)

    @property
    def filled_bytes(self) -> int:
        """How much is there of a frame that is half there."""
        return len(self._pending) if self._large is None else self._filled

    @property
    def next_bytes(self) -> int:
        """Memory that it takes with the next ``get_buffer``: more, if what there is is full."""
        if self._large is None or self._filled < len(self._large):
            return self.held_bytes
        growth = FIRST_GROWTH if self._filled <= SCRATCH_BYTES else _GROWTH
        more = min(_MOST_GROWTH_BYTES, max(_LEAST_FREE_BYTES, self._filled * (growth - 1)))
        return min(self._large_bytes, self._filled + more)

    def get_buffer(self) -> memoryview:
        """Where to put the next bytes; never empty. Good until the next ``buffer_updated``."""
        large = self._large
        if large is None:
            if not self._pending:
                return self._scratch_view
            count = len(self._pending)
            self._scratch[:count] = self._pending
            return self._scratch_view[count:]
        if self._filled == len(large):
            grown = bytearray(self.next_bytes)
            grown[: self._filled] = large
            large = self._large = grown
        return memoryview(large)[self._filled :]

    def buffer_updated(self, count: int) -> list[Frame]:
        """Take note of ``count`` new bytes; the frames that are whole now, without lengths.

        :raises RemoteProtocolError: for a length that is negative or above the limit.
        """
        if self._large is None:
            return self._split_scratch(len(self._pending) + count)
        self._filled += count
        if self._filled < self._large_bytes:
            return []
        frame = memoryview(self._large)
        self._large = None
        return [frame]

    def _split_scratch(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        scratch = self._scratch_view
        position = 0
        while end - position >= _LENGTH.size:
            length = self._checked_length(position)
            start = position + _LENGTH.size
            if length > end - start:
                if _LENGTH.size + length > len(scratch):
                    self._begin_large(length, scratch[start:end])
                    position = end
                break
            frames.append(bytes(scratch[start : start + length]))
            position = start + length
        self._pending = bytes(scratch[position:end]) if position < end else b""
        return frames

    def _checked_length(self, position: int) -> int:
        length: int = _LENGTH.unpack_from(self._scratch, position)[0]
        if not 0 <= length <= self._max_frame_bytes:
            raise RemoteProtocolError(
                f"a frame of {length} bytes, the limit is {self._max_frame_bytes}"
            )
        return length

    def _begin_large(self, length: int, first: memoryview) -> None:
        self._large = bytearray(first)
        self._large_bytes = length
        self._filled = len(first)
