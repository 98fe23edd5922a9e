"""Frames come out whole, however the bytes arrive."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol.framing import EAGER_BYTES, FrameSplitter

LIMIT = 16 << 20


def fed(splitter: FrameSplitter, stream: bytes, cuts: list[int]) -> list[bytes]:
    """The frames out of ``stream``, given in pieces of at most the sizes in ``cuts``, in turn."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        room = splitter.get_buffer()
        count = min(len(room), cuts[turn % len(cuts)], len(stream) - position)
        room[:count] = stream[position : position + count]
        del room  # a loop lets go of the buffer, too
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
def test_any_frames_in_any_pieces(frames: list[bytes], cuts: list[int], scratch: int) -> None:
    splitter = FrameSplitter(max_frame_bytes=1000, scratch_bytes=scratch)
    assert fed(splitter, framed(*frames), cuts) == frames


@pytest.mark.parametrize("size", [64 * 1024 - 4, 64 * 1024 - 3, 1 << 20, 5 * EAGER_BYTES + 1])
def test_large_frames_between_small_ones(size: int) -> None:
    frames = [b"first", bytes([7]) * size, b"", b"x" * size, b"last"]
    assert fed(FrameSplitter(max_frame_bytes=LIMIT), framed(*frames), [1 << 18]) == frames


def test_frames_stay_when_more_is_read() -> None:
    splitter = FrameSplitter(max_frame_bytes=1000, scratch_bytes=64)
    stream = framed(b"a" * 20, b"b" * 100)
    kept = []
    for position in range(0, len(stream), 8):
        piece = stream[position : position + 8]
        splitter.get_buffer()[: len(piece)] = piece
        kept += splitter.buffer_updated(len(piece))
    fed(splitter, framed(b"z" * 20, b"z" * 100), [64])
    assert [bytes(frame) for frame in kept] == [b"a" * 20, b"b" * 100]


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_lengths_that_cannot_be(length: int) -> None:
    splitter = FrameSplitter(max_frame_bytes=1000)
    with pytest.raises(RemoteProtocolError, match=f"a frame of {length} bytes, the limit is 1000"):
        fed(splitter, framed(b"good") + struct.pack(">i", length), [3])


def test_a_claim_alone_costs_little_memory() -> None:
    tracemalloc.start()
    try:
        splitter = FrameSplitter(max_frame_bytes=2**31 - 1)
        fed(splitter, struct.pack(">i", 2**31 - 1) + b"x", [5])
        assert len(splitter.get_buffer()) > 0
        assert tracemalloc.get_traced_memory()[1] < EAGER_BYTES + 500_000
    finally:
        tracemalloc.stop()
