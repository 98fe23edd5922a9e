"""PURE. What may happen to a transactional id, and what it wants done: events and actions.

Names are those of Kafka's requests. A ``token`` stands for a request that waits for its answer;
each is answered once. Times are wall milliseconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from kraftjbod.broker.transactions.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER,
    TransactionMetadata,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition

Token = Hashable
#: From this level of ``transaction.version`` on the epoch grows with every transaction (KIP-890).
BUMPING_VERSION: Final = 2

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequested:
    token: Token
    timeout_ms: int
    version: int
    """The cluster's level of ``transaction.version``, if somebody has to be fenced."""
    expected: tuple[int, int] | None = None
    """Producer id and epoch of who goes on after an error (KIP-360)."""
    fresh_producer_id: int = NO_PRODUCER
    """For who has used up its epochs; see :attr:`Transaction.is_exhausted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequested:
    token: Token
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int
    """The level of ``transaction.version`` that the client goes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequested:
    token: Token
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int
    fresh_producer_id: int = NO_PRODUCER


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """It may be open for too long; who has it is fenced then.

    ``version`` is the cluster's level of ``transaction.version``.
    """

    version: int
    fresh_producer_id: int = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Expired:
    """It may have been of no use for as long as transactional ids are kept."""

    kept_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """What :class:`Write` asked for is replicated, or why it is not."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Marked:
    """These partitions know how it ended."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was begun before goes on: after a load, or when a write is to be tried again."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker does not coordinate it any more."""


TransactionEvent = (
    InitRequested
    | AddRequested
    | EndRequested
    | Overdue
    | Expired
    | Written
    | Marked
    | Resumed
    | Unloaded
)


# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAnswer:
    """The producer id and epoch to go on with, where the request asks for them."""

    code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Answer:
    token: Token
    answer: TransactionAnswer


@dataclass(frozen=True, slots=True)
class Write:
    """Append it as it shall be, or that it is forgotten (None); :class:`Written` has to follow."""

    metadata: TransactionMetadata | None


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Let these partitions know how it ends; :class:`Marked` follows for each."""

    metadata: TransactionMetadata


@dataclass(frozen=True, slots=True)
class ResumeLater:
    """:class:`Resumed` has to follow, a little later."""


TransactionAction = Answer | Write | SendMarkers | ResumeLater
