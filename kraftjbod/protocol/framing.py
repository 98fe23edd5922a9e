"""PURE. Splits a byte stream into frames: a big-endian length of four bytes, then the frame.

Kafka's protocol and this project's RPC both use this framing.

:class:`FrameSplitter` provides the buffer for the next read (``get_buffer``) and is notified of
the bytes read (``buffer_updated``), as ``asyncio.BufferedProtocol`` requires. A large frame is
read from the socket into its final place. Small frames use a scratch buffer that all connections of
a thread can share, because the event loop processes each read before the next one.

Only a partial frame costs memory, in proportion to its received bytes and not its claimed length.
"""

from __future__ import annotations

import struct
from typing import Final

from kraftjbod.core.errors import RemoteProtocolError

#: Bytes to send or write.
Buffer = bytes | bytearray | memoryview
Frame = bytes | memoryview

#: Size of the buffer for small frames. A frame that fits is copied once; others are not copied.
SCRATCH_BYTES: Final = 64 * 1024
#: Buffer size for a large frame, as a multiple of the received bytes. The first factor is the
#: largest, so that frames of usual sizes are not copied while they are received.
FIRST_GROWTH: Final = 16
_GROWTH: Final = 4
_LEAST_FREE_BYTES: Final = 1024
_MOST_GROWTH_BYTES: Final = 32 * 1024 * 1024

_LENGTH: Final = struct.Struct(">i")
#: First two bytes of a TLS handshake: its record type, and the major version of each TLS.
_TLS_HANDSHAKE: Final = 0x1603


class FrameSplitter:
    """Splits the bytes that a connection receives into frames, and provides the buffer to read
    into. Unusable after an error.
    """

    def __init__(self, *, max_frame_bytes: int, scratch: bytearray | None = None) -> None:
        """
        :param scratch: buffer used only between ``get_buffer`` and ``buffer_updated``, so that
            all splitters of a thread may share one; a separate buffer if None.
        """
        #: A longer frame is an error. May change between two reads.
        self.max_frame_bytes = max_frame_bytes
        self._scratch = bytearray(SCRATCH_BYTES) if scratch is None else scratch
        self._scratch_view = memoryview(self._scratch)
        assert len(self._scratch) > _LENGTH.size, self._scratch
        #: Start of an incomplete small frame, or of its length.
        self._pending = b""
        #: The large frame being read, with ``_filled`` of its ``_large_bytes`` bytes received. None
        #: while frames fit the scratch buffer.
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._filled = 0

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that a partial frame uses; 0 between frames."""
        return len(self._pending) if self._large is None else len(self._large)

    @property
    def filled_bytes(self) -> int:
        """Number of received bytes of a partial frame."""
        return len(self._pending) if self._large is None else self._filled

    @property
    def next_bytes(self) -> int:
        """Memory in bytes that the partial frame uses after the next ``get_buffer``.

        The result exceeds :attr:`held_bytes` if the buffer is full and has to grow.
        """
        if self._large is None or self._filled < len(self._large):
            return self.held_bytes
        growth = FIRST_GROWTH if self._filled <= SCRATCH_BYTES else _GROWTH
        more = min(_MOST_GROWTH_BYTES, max(_LEAST_FREE_BYTES, self._filled * (growth - 1)))
        return min(self._large_bytes, self._filled + more)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next read, never empty and valid until ``buffer_updated``."""
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
        """Process ``count`` new bytes; return the frames that they complete, without the length
        fields.

        :raises RemoteProtocolError: a frame has a negative length, or one above the limit.
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
        if not 0 <= length <= self.max_frame_bytes:
            is_tls = length >> 16 == _TLS_HANDSHAKE
            hint = "; these bytes begin a TLS handshake: the client may use TLS" if is_tls else ""
            raise RemoteProtocolError(
                f"a frame of {length} bytes, the limit is {self.max_frame_bytes}{hint}"
            )
        return length

    def _begin_large(self, length: int, first: memoryview) -> None:
        self._large = bytearray(first)
        self._large_bytes = length
        self._filled = len(first)
