"""``FrameSplitter`` returns whole frames, in any division of the bytes."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol.framing import FIRST_GROWTH, FrameSplitter

LIMIT = 16 << 20


def fed(splitter: FrameSplitter, stream: bytes, cuts: list[int]) -> list[bytes]:
    """Return the frames of ``stream``, fed in pieces whose maximum sizes cycle through ``cuts``."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        buffer = splitter.get_buffer()
        count = min(len(buffer), cuts[turn % len(cuts)], len(stream) - position)
        buffer[:count] = stream[position : position + count]
        del buffer  #  an event loop releases the buffer as well
        frames += [bytes(frame) for frame in splitter.buffer_updated(count)]
        position += count
        turn += 1
    return frames


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


@given(
    st.lists(st.binary(max_size=300), max_size=12),
    st.lists(st.integers(1, 200), min_size=1, max_size=6),
    st.integers(8, 200),
)
def test_frame_splitter_returns_any_frames_from_any_pieces(
    frames: list[bytes], cuts: list[int], scratch: int
) -> None:
    splitter = FrameSplitter(max_frame_bytes=1000, scratch=bytearray(scratch))
    assert fed(splitter, framed(*frames), cuts) == frames


@pytest.mark.parametrize("size", [64 * 1024 - 4, 64 * 1024 - 3, 1 << 20, 10 << 20])
def test_frame_splitter_returns_large_frames_between_small_ones(size: int) -> None:
    frames = [b"first", bytes([7]) * size, b"", b"x" * size, b"last"]
    assert fed(FrameSplitter(max_frame_bytes=LIMIT), framed(*frames), [1 << 18]) == frames


def test_frame_splitter_keeps_returned_frames_intact() -> None:
    splitter = FrameSplitter(max_frame_bytes=1000, scratch=bytearray(64))
    stream = framed(b"a" * 20, b"b" * 100)
    kept = []
    for position in range(0, len(stream), 8):
        piece = stream[position : position + 8]
        splitter.get_buffer()[: len(piece)] = piece
        kept += splitter.buffer_updated(len(piece))
    fed(splitter, framed(b"z" * 20, b"z" * 100), [64])
    assert [bytes(frame) for frame in kept] == [b"a" * 20, b"b" * 100]


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_frame_splitter_rejects_impossible_lengths(length: int) -> None:
    splitter = FrameSplitter(max_frame_bytes=1000)
    with pytest.raises(RemoteProtocolError, match=f"a frame of {length} bytes, the limit is 1000"):
        fed(splitter, framed(b"good") + struct.pack(">i", length), [3])


def test_frame_splitter_memory_grows_with_received_bytes_not_with_the_length_field() -> None:
    """There is one splitter per connection; each of them awaits a frame of 100 MiB."""
    claim = struct.pack(">i", 100 << 20)
    tracemalloc.start()
    try:
        shared = bytearray(64 * 1024)
        splitters = [FrameSplitter(max_frame_bytes=100 << 20, scratch=shared) for _ in range(1000)]
        for splitter in splitters:
            fed(splitter, claim + b"x", [5])
            assert len(splitter.get_buffer()) > 0
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        arrived = 0
        for size in (1000, 10_000, 100_000, 1_000_000):
            fed(splitters[0], b"x" * size, [1 << 20])
            arrived += size
            assert splitters[0].held_bytes <= FIRST_GROWTH * max(1024, arrived)
            assert splitters[0].filled_bytes == arrived + 1
    finally:
        tracemalloc.stop()


def test_frame_splitter_holds_no_memory_between_frames() -> None:
    splitter = FrameSplitter(max_frame_bytes=1 << 20)
    for frame in (b"", b"x" * 10, b"x" * 500_000):
        whole = framed(frame)
        fed(splitter, whole[:-1], [1 << 20])
        assert splitter.held_bytes >= splitter.filled_bytes >= len(frame) - 1
        assert fed(splitter, whole[-1:], [1]) == [frame]
        assert (splitter.held_bytes, splitter.filled_bytes) == (0, 0)
