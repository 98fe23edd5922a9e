"""PURE. Ids that name things in the cluster, and Kafka's text form of a UUID.

Rules of this file:

* every id has a type of its own; a bare ``int`` or ``bytes`` id does not pass review;
* the reserved directory ids live here and nowhere else (KIP-858, "Reserved UUIDs");
* nothing here draws randomness: a new id is made from bytes that the caller drew.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, NamedTuple, NewType, Self

from kraftjbod.core.errors import InvalidUuidText

BrokerId = NewType("BrokerId", int)
"""``node.id`` of a broker, >= 0."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Offset of the metadata entry that registered this incarnation of a broker."""
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)
ConnectionId = NewType("ConnectionId", int)
"""Of a connection that this process accepted; no other one has it while the process lives."""

NO_LEADER: Final = BrokerId(-1)
UNKNOWN_BROKER_EPOCH: Final = BrokerEpoch(-1)

_UUID_BYTES: Final = 16
_UUID_TEXT_CHARS: Final = 22


class Uuid(bytes):
    """Sixteen bytes, written as 22 characters of unpadded URL-safe base64 as Kafka does."""

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != _UUID_BYTES:
            raise InvalidUuidText(f"a uuid has {_UUID_BYTES} bytes, got {len(raw)}")
        return super().__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The uuid that ``text`` (22 characters, padding allowed) stands for.

        :raises InvalidUuidText: naming the text, if it is anything else.
        """
        bare = text.rstrip("=")
        if len(bare) != _UUID_TEXT_CHARS:
            raise InvalidUuidText(f"{text!r} is not a uuid: expected {_UUID_TEXT_CHARS} characters")
        try:
            return cls(base64.b64decode(bare + "==", altchars=b"-_", validate=True))
        except binascii.Error as e:
            raise InvalidUuidText(f"{text!r} is not a uuid: {e}") from e

    @classmethod
    def random(cls, random_bytes: Callable[[int], bytes]) -> Self:
        """A type-4 uuid whose text holds no ``-``, so that it never looks like an option."""
        while True:
            raw = bytearray(random_bytes(_UUID_BYTES))
            raw[6] = (raw[6] & 0x0F) | 0x40
            raw[8] = (raw[8] & 0x3F) | 0x80
            drawn = cls(bytes(raw))
            if not drawn.is_reserved and "-" not in str(drawn):
                return drawn

    @property
    def is_reserved(self) -> bool:
        """One of the first 100 uuids, which are never drawn (KIP-858, "Reserved UUIDs")."""
        return int.from_bytes(self, "big") < 100

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).rstrip(b"=").decode("ascii")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class TopicId(Uuid):
    """Identity of one topic; a topic deleted and created anew has another."""

    __slots__ = ()


#: Where a directory's path could stand: the broker chooses one.
ANY_DIRECTORY: Final = "any"
#: Before a directory's id where its path could stand.
DIRECTORY_ID_PREFIX: Final = "dirid:"


class DirectoryId(Uuid):
    """Identity of one log directory; it travels with the disk, whatever its mount point."""

    __slots__ = ()

    @property
    def reference(self) -> str:
        """``dirid:<id>``: what names the directory in place of its path."""
        return f"{DIRECTORY_ID_PREFIX}{self}"

    @classmethod
    def from_reference(cls, text: str) -> Self | None:
        """The id in ``dirid:<id>``; None for a text that is no such thing, such as a path.

        :raises InvalidUuidText: if no id follows.
        """
        if not text.startswith(DIRECTORY_ID_PREFIX):
            return None
        return cls.parse(text.removeprefix(DIRECTORY_ID_PREFIX))


ZERO_UUID: Final = Uuid(bytes(16))
#: On the wire, of a clean stop that does not say whose it was.
NO_INCARNATION: Final = ZERO_UUID

UNASSIGNED_DIR: Final = DirectoryId(bytes(16))
"""The directory is not known yet; the hosting broker chooses one and reports it."""
LOST_DIR: Final = DirectoryId(bytes(15) + b"\x01")
"""The replica sat in a directory that is gone and cannot be named."""
MIGRATING_DIR: Final = DirectoryId(bytes(15) + b"\x02")
"""The replica was placed before directories had ids."""


MAX_BROKER_ID: Final = 2**31 - 1


def is_broker_id(text: str) -> bool:
    """Whether ``text`` is a broker's id as everybody writes it: no sign, no zeros before it."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_BROKER_ID)):
        return False
    return str(int(text)) == text and int(text) <= MAX_BROKER_ID


class TopicPartition(NamedTuple):
    """A partition by its topic's name: what clients and directory names speak of."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id: what the metadata speaks of."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}"
