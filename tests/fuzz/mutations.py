"""Mutations that spoil the bytes of a valid frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

Mutation = Callable[[random.Random, bytearray, bytes], bytearray]
"""Takes a random source, the frame to spoil and another frame; returns the spoilt frame."""

_BYTES: Final = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS: Final = tuple(
    packed
    for fmt, bits in ((">b", 8), (">h", 16), (">i", 32), (">q", 64))
    for value in (-(1 << bits - 1), -2, -1, 0, 1, 2, (1 << bits - 1) - 1)
    for packed in (struct.pack(fmt, value),)
)
#: Lengths of compact fields, some of them longer than the five bytes that a 32-bit varint may have.
_VARINTS: Final = (b"\x00", b"\x7f", b"\x80\x01", b"\xff\x7f", b"\xff\xff\xff\xff\x07", b"\x80" * 9)


def flip_bits(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    for _ in range(rng.choice((1, 1, 1, 3))):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    return frame


def set_byte(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    frame[rng.randrange(len(frame))] = rng.choice(_BYTES)
    return frame


def overwrite(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    """Overwrite bytes at a random position with a boundary value of a number or length."""
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
    """Repeat a part of the frame, which gives arrays more elements than their count says."""
    start = rng.randrange(len(frame))
    part = frame[start : start + rng.choice((1, 2, 8, 30))]
    frame[start:start] = part * rng.choice((1, 2, 50))
    return frame


def splice(rng: random.Random, frame: bytearray, other: bytes) -> bytearray:
    """Join the beginning of one frame and the end of the other."""
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
    """Return ``frame`` after one to four random mutations, mostly one."""
    wrong = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if wrong:
            wrong = rng.choice(ALL)(rng, wrong, other)
    return bytes(wrong)
