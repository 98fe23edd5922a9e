"""WIRE. Chooses the partition of a key as Kafka's Java clients do."""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of ``data`` with Kafka's seed, unsigned."""
    whole = len(data) // 4
    hashed = (_SEED ^ len(data)) & _MASK
    for word in struct.unpack_from(f"<{whole}I", data):
        mixed = (word * _MULTIPLIER) & _MASK
        mixed ^= mixed >> 24
        hashed = ((hashed * _MULTIPLIER) ^ (mixed * _MULTIPLIER)) & _MASK
    rest = data[whole * 4 :]
    if rest:
        hashed ^= int.from_bytes(rest, "little")
        hashed = (hashed * _MULTIPLIER) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's Java clients choose for records with ``key``.

    :param partitions: number of partitions of the topic.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
