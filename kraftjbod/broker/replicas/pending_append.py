"""LOOP. ``PendingAppend``: one partition of a produce on its way to its ``AppendOutcome``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kraftjbod.broker.partitions.partition import ANY_EPOCH, NO_EPOCH
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.errors import ErrorCode, InvalidRecordsError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_validation import CheckedBatch
from kraftjbod.storage.log.verification_guards import VerificationGuard

ACKS_ALL: Final = -1
NO_OFFSET: Final = -1


class AppendOutcome(NamedTuple):
    """What a producer is answered about one partition."""

    code: ErrorCode
    message: str | None = None
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    record_errors: tuple[tuple[int, str], ...] = ()
    """Index in the batch, and why that record is refused."""
    is_in_log: bool = False
    """Of an error: the batch was appended, and in-sync replicas may not have it."""

    @classmethod
    def of(cls, error: OperatingError) -> AppendOutcome:
        records = error.records if isinstance(error, InvalidRecordsError) else ()
        return cls(error.code, error.message, record_errors=records)


class PendingAppend(Completion[AppendOutcome]):
    """One partition of one produce request, on its way to its outcome."""

    __slots__ = (
        "acks",
        "checked",
        "expected_epoch",
        "gaps_met",
        "guard",
        "is_being_checked",
        "is_being_verified",
        "is_written",
        "leader_epoch",
        "marker",
        "records",
        "reorders_seen",
        "replica",
        "timeout_ms",
        "topic_partition",
        "transaction",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: Buffer = b"",
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int = 0,
        expected_epoch: int = ANY_EPOCH,
        transaction: TransactionClaim | None = None,
        marker: MarkerToWrite | None = None,
    ) -> None:
        super().__init__()
        self.topic_partition = topic_partition
        self.records = records
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.expected_epoch = expected_epoch
        #: What its batch may belong to.
        self.transaction = transaction
        #: What is appended instead of records.
        self.marker = marker
        #: What the coordinator was asked with, once it has answered that all is well.
        self.guard: VerificationGuard | None = None
        #: It waits for the coordinator, or after others of its producer that do.
        self.is_being_verified = False
        #: Its records wait for the thread that checks them, or after others that do.
        self.is_being_checked = False
        #: Once its records were found to be good.
        self.checked: CheckedBatch | None = None
        #: Where it is written to, and in which leader epoch, once that was asked for.
        self.replica: HostedReplica | None = None
        self.leader_epoch = NO_EPOCH
        #: Of ``ReplicaAppends._reorders``, when it went to the directory's queue.
        self.reorders_seen = 0
        #: How often it went there once more because those before it had to.
        self.gaps_met = 0
        #: The directory has answered; what is left is to wait for followers.
        self.is_written = False

    @classmethod
    def refused(cls, topic_partition: TopicPartition, outcome: AppendOutcome) -> PendingAppend:
        """One that is not even begun."""
        pending = cls(topic_partition)
        pending.set_result(outcome)
        return pending


class MarkerToWrite(NamedTuple):
    """How a coordinator ends a producer's transaction."""

    producer_id: int
    producer_epoch: int
    marker: TransactionMarker
    transaction_version: int = 0


class TransactionClaim(NamedTuple):
    """Whose transaction a batch says it belongs to; the coordinator knows whether it does."""

    transactional_id: str
    supports_epoch_bump: bool
    """The client knows KIP-890: its partitions are added by asking, not only verified."""
    refusal_of: Callable[[ErrorCode], ErrorCode] = lambda code: code
    """What the client is answered for what the coordinator said."""
    is_from_coordinator: bool = False
    """A group's coordinator writes for the producer, and counts no sequence."""
    still_holds: Callable[[], ErrorCode] = lambda: ErrorCode.NONE
    """Asked when the coordinator has answered: why it shall not be appended any more."""
