"""PURE. Events and actions of the state machine of a transactional id.

Names are those of Kafka's requests. A ``token`` identifies a request that waits for its answer;
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
#: From this level of ``transaction.version`` on, each transaction increments the epoch (KIP-890).
BUMPING_VERSION: Final = 2

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequested:
    """Event: a producer sent InitProducerId."""

    token: Token
    timeout_ms: int
    version: int
    """The cluster's level of ``transaction.version``, used if a producer must be fenced."""
    expected: tuple[int, int] | None = None
    """Producer id and epoch of a producer that continues after an error (KIP-360)."""
    fresh_producer_id: int = NO_PRODUCER
    """Used if the epochs are exhausted; see :attr:`Transaction.is_exhausted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequested:
    """Event: a producer adds ``partitions`` to its transaction."""

    token: Token
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int
    """The client's level of ``transaction.version``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequested:
    """Event: a producer sent EndTxn."""

    token: Token
    producer_id: int
    producer_epoch: int
    commits: bool
    """True to commit, False to abort."""
    version: int
    """The client's level of ``transaction.version``."""
    fresh_producer_id: int = NO_PRODUCER
    """Used if the epochs are exhausted; see :attr:`Transaction.is_exhausted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """Event: the transaction may be open for longer than its timeout. Then its producer is fenced.

    ``version`` is the cluster's level of ``transaction.version``. ``fresh_producer_id`` is used if
    the epochs are exhausted; see :attr:`Transaction.is_exhausted`.
    """

    version: int
    fresh_producer_id: int = NO_PRODUCER


@dataclass(frozen=True, slots=True)
class Expired:
    """Event: the id may have been unused for ``kept_ms``. Then it is deleted."""

    kept_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """Event: the record of :class:`Write` is replicated, or the write failed with ``code``."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Marked:
    """Event: markers were appended to these partitions."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Event: complete the transaction if its end is decided. Sent after a load, after a new
    election of this broker, and after :class:`ResumeLater`.
    """


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Event: this broker does not coordinate the transaction any more."""


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
    """The answer to a request.

    For InitProducerId and EndTxn it has the producer id and epoch to use next.
    """

    code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Answer:
    """Action: complete the request ``token`` with ``answer``."""

    token: Token
    answer: TransactionAnswer


@dataclass(frozen=True, slots=True)
class Write:
    """Action: append the metadata, or a tombstone if it is None. :class:`Written` must follow."""

    metadata: TransactionMetadata | None


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Action: send markers to the partitions that lack one. :class:`Marked` must follow for each
    partition."""

    metadata: TransactionMetadata


@dataclass(frozen=True, slots=True)
class ResumeLater:
    """Action: send :class:`Resumed` after a short pause."""


TransactionAction = Answer | Write | SendMarkers | ResumeLater
