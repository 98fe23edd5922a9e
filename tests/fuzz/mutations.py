"""Wrong bytes: a few ways to spoil what was sound, each drawn from one random source."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

Mutation = Callable[[random.Random, bytearray, bytes], bytearray]
"""Of a frame's bytes; the third argument is another frame's."""

_BYTES: Final = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS: Final = tuple(
    packed
    for fmt, bits in ((">b", 8), (">h", 16), (">i", 32), (">q", 64))
    for value in (-(1 << bits - 1), -2, -1, 0, 1, 2, (1 << bits - 1) - 1)
    for packed in (struct.pack(fmt, value),)
)
#: Lengths as compact fields write them, up to and beyond what five bytes may say.
_VARINTS: Final = (b"\x00", b"\x7f", b"\x80\x01", b"\xff\x7f", b"\xff\xff\xff\xff\x07", b"\x80" * 9)


def flip_bits(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    for _ in range(rng.choice((1, 1, 1, 3))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    return frame


def set_byte(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    frame[rng.randrange(len(frame))] = rng.choice(_BYTES)
    return frame


def overwrite(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    """A boundary where a number, or the length of something, may stand."""
    number = rng.choice(_NUMBERS if rng.random() < 0.7 else _VARINTS)
    position = rng.randrange(len(frame))
    frame[position : position + len(number)] = number
    return frame


def insert(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    position = rng.randrange(len(frame) + 1)
    frame[position:position] = rng.choice((*_NUMBERS, *_VARINTS, rng.randbytes(9)))
    return frame


def delete(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    start = rng.randrange(len(frame))
    del frame[start : start + rng.choice((1, 1, 2, 4, 40))]
    return frame


def truncate(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    del frame[rng.randrange(len(frame)) :]
    return frame


def repeat(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    """A part of it again and again: elements that nobody counted."""
    start = rng.randrange(len(frame))
    part = frame[start : start + rng.choice((1, 2, 8, 30))]
    frame[start:start] = part * rng.choice((1, 2, 50))
    return frame


def splice(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    """The beginning of one and the end of another."""
    return frame[: rng.randrange(len(frame))] + other[rng.randrange(len(other)) :]


ALL: Final[Sequence[Mutation]] = (
    flip_bits,
    set_byte,
    overwrite,
    overwrite,
    insert,
    delete,
    truncate,
    repeat,
    splice,
)


def spoilt(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    """``frame`` with something wrong, most times with one thing only."""
    wrong = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if wrong:
            wrong = rng.choice(ALL)(rng, wrong, other)
    return bytes(wrong)
