"""PURE. Id types of the cluster, and Kafka's text form of a UUID.

* Every kind of id has its own type. A plain ``int`` or ``bytes`` is never used as an id.
* The reserved directory ids are defined only here (KIP-858, "Reserved UUIDs").
* No code here generates random bytes. The caller passes a source of them.
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
"""Id of an accepted connection, unique while the process runs."""

NO_LEADER: Final = BrokerId(-1)
UNKNOWN_BROKER_EPOCH: Final = BrokerEpoch(-1)

_UUID_BYTES: Final = 16
_UUID_TEXT_CHARS: Final = 22


class Uuid(bytes):
    """Id of sixteen bytes.

    The text form is 22 characters of unpadded URL-safe base64, as in Kafka. The constructor raises
    InvalidUuidText if its argument has another length.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != _UUID_BYTES:
            raise InvalidUuidText(f"a uuid has {_UUID_BYTES} bytes, got {len(raw)}")
        return super().__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form, with or without padding.

        :raises InvalidUuidText: the text is not a uuid. The message quotes the text.
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
        """Return a random uuid (type 4) whose text has no ``-``, so that it never looks like an
        option.

        :param random_bytes: returns the given number of random bytes.
        """
        while True:
            raw = bytearray(random_bytes(_UUID_BYTES))
            raw[6] = (raw[6] & 0x0F) | 0x40
            raw[8] = (raw[8] & 0x3F) | 0x80
            drawn = cls(bytes(raw))
            if not drawn.is_reserved and "-" not in str(drawn):
                return drawn

    @property
    def is_reserved(self) -> bool:
        """Whether this is one of the first 100 uuids (KIP-858, "Reserved UUIDs")."""
        return int.from_bytes(self, "big") < 100

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self).rstrip(b"=").decode("ascii")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class TopicId(Uuid):
    """Id of a topic. A topic that is deleted and recreated gets another id."""

    __slots__ = ()


#: Used in place of a directory's path: the broker chooses a directory.
ANY_DIRECTORY: Final = "any"
#: Prefix of a directory id that is used in place of a path.
DIRECTORY_ID_PREFIX: Final = "dirid:"


class DirectoryId(Uuid):
    """Id of a log directory, stored on the disk and independent of the mount point."""

    __slots__ = ()

    @property
    def reference(self) -> str:
        """``dirid:<id>``, which tools accept in place of the directory's path."""
        return f"{DIRECTORY_ID_PREFIX}{self}"

    @classmethod
    def from_reference(cls, text: str) -> Self | None:
        """Return the id in ``dirid:<id>``; None for any other text, such as a path.

        :raises InvalidUuidText: the text after ``dirid:`` is not a uuid.
        """
        if not text.startswith(DIRECTORY_ID_PREFIX):
            return None
        return cls.parse(text.removeprefix(DIRECTORY_ID_PREFIX))


ZERO_UUID: Final = Uuid(bytes(16))
#: Wire value for a clean shutdown that does not name an incarnation.
NO_INCARNATION: Final = ZERO_UUID

UNASSIGNED_DIR: Final = DirectoryId(bytes(16))
"""The directory is not known yet; the hosting broker chooses one and reports it."""
LOST_DIR: Final = DirectoryId(bytes(15) + b"\x01")
"""The replica was in a directory that is gone and cannot be named."""
MIGRATING_DIR: Final = DirectoryId(bytes(15) + b"\x02")
"""The replica was placed before directories had ids."""


MAX_BROKER_ID: Final = 2**31 - 1


def is_broker_id(text: str) -> bool:
    """Return whether ``text`` is a broker id in decimal form, without sign and leading zeros."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_BROKER_ID)):
        return False
    return str(int(text)) == text and int(text) <= MAX_BROKER_ID


class TopicPartition(NamedTuple):
    """A partition by topic name, as clients and directory names use it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by topic id, as the metadata uses it."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}"
