"""Whole frames out of a stream of bytes: four bytes of length, big-endian, then the frame.

Both wire protocols are framed like this.

:class:`FrameSplitter` says where the next bytes shall be put (``get_buffer``) and is told how many
came (``buffer_updated``), as ``asyncio.BufferedProtocol`` wants it. So the body of a large frame
is read from the socket straight into its final place; small frames are cut out of a scratch buffer.

A claimed length costs no memory before its bytes arrive, beyond :data:`EAGER_BYTES`.
"""

from __future__ import annotations

import struct
from typing import Final

from kraftjbod.core.errors import RemoteProtocolError

Frame = bytes | memoryview

#: Room for small frames; a frame that fits is copied once, a larger one is read in place.
SCRATCH_BYTES: Final = 64 * 1024
#: How much of a large frame is allocated on the strength of its claim alone.
EAGER_BYTES: Final = 2 * 1024 * 1024

_LENGTH: Final = struct.Struct(">i")


class FrameSplitter:
    """Splits one direction of one connection. Any error ends it."""

    def __init__(self, *, max_frame_bytes: int, scratch_bytes: int = SCRATCH_BYTES) -> None:
        assert scratch_bytes > _LENGTH.size, scratch_bytes
        self._max_frame_bytes = max_frame_bytes
        self._scratch = bytearray(scratch_bytes)
        self._scratch_view = memoryview(self._scratch)
        #: How many bytes at the start of the scratch buffer belong to a frame not yet whole.
        self._pending = 0
        #: The large frame being read; it is ``_large_bytes`` long when whole, and holds as many
        #: as ``_filled`` so far. None while frames fit the scratch buffer.
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Where to put the next bytes; never empty. Good until the next ``buffer_updated``."""
        if self._large is None:
            return self._scratch_view[self._pending :]
        if self._filled == len(self._large):
            # All bytes before have arrived, so doubling is paid for.
            self._large += bytes(min(self._filled, self._large_bytes - self._filled))
        return memoryview(self._large)[self._filled :]

    def buffer_updated(self, count: int) -> list[Frame]:
        """Take note of ``count`` new bytes; the frames that are whole now, without lengths.

        :raises RemoteProtocolError: for a length that is negative or above the limit.
        """
        if self._large is None:
            return self._split_scratch(self._pending + count)
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
                if start - position + length > len(scratch):
                    self._begin_large(length, scratch[start:end])
                    position = end
                break
            frames.append(bytes(scratch[start : start + length]))
            position = start + length
        self._pending = end - position
        if position and self._pending:
            scratch[: self._pending] = bytes(scratch[position:end])
        return frames

    def _checked_length(self, position: int) -> int:
        length: int = _LENGTH.unpack_from(self._scratch, position)[0]
        if not 0 <= length <= self._max_frame_bytes:
            raise RemoteProtocolError(
                f"a frame of {length} bytes, the limit is {self._max_frame_bytes}"
            )
        return length

    def _begin_large(self, length: int, first: memoryview) -> None:
        self._large = bytearray(min(length, EAGER_BYTES))
        self._large[: len(first)] = first
        self._large_bytes = length
        self._filled = len(first)
