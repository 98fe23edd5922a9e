"""LOOP. ``PendingAppend``: one partition of a produce request until its ``AppendOutcome``."""

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
    """The result of a produce for one partition."""

    code: ErrorCode
    message: str | None = None
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    record_errors: tuple[tuple[int, str], ...] = ()
    """Index in the batch and reason for each refused record."""
    is_in_log: bool = False
    """True for an error after the append: in-sync replicas may lack the batch."""

    @classmethod
    def of_error(cls, error: OperatingError) -> AppendOutcome:
        records = error.records if isinstance(error, InvalidRecordsError) else ()
        return cls(error.code, error.message, record_errors=records)


class PendingAppend(Completion[AppendOutcome]):
    """One partition of a produce request, or a transaction marker, that is to be appended. It
    completes with the :class:`AppendOutcome`.

    ``timeout_ms`` limits the wait for replication. ``expected_epoch`` is the leader epoch in which
    the append is allowed; ``ANY_EPOCH`` for any.
    """

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
        #: The transaction of the batch according to the request.
        self.transaction = transaction
        #: The transaction marker to append instead of records.
        self.marker = marker
        #: The verification guard that the coordinator confirmed.
        self.guard: VerificationGuard | None = None
        #: It waits for the coordinator, or behind batches of its producer that do.
        self.is_being_verified = False
        #: It waits for the thread that validates records, or behind appends that do.
        self.is_being_checked = False
        #: The batch after its validation.
        self.checked: CheckedBatch | None = None
        #: The replica and the leader epoch of the write, once it is queued.
        self.replica: HostedReplica | None = None
        self.leader_epoch = NO_EPOCH
        #: The value of ``ReplicaAppends._reorders`` when it was queued at the directory.
        self.reorders_seen = 0
        #: How often it was queued again because earlier batches had to be queued again.
        self.gaps_met = 0
        #: The directory has responded; only the replication is pending.
        self.is_written = False

    @classmethod
    def refused(cls, topic_partition: TopicPartition, outcome: AppendOutcome) -> PendingAppend:
        """Return a completed append that was refused before it started."""
        pending = cls(topic_partition)
        pending.set_result(outcome)
        return pending


class MarkerToWrite(NamedTuple):
    """A transaction marker to append: the end of a transaction as its coordinator decided."""

    producer_id: int
    producer_epoch: int
    marker: TransactionMarker
    transaction_version: int = 0


class TransactionClaim(NamedTuple):
    """The transaction that a batch names. The coordinator verifies whether the batch belongs
    to it."""

    transactional_id: str
    supports_epoch_bump: bool
    """The client knows KIP-890: the partition is added to the transaction, not only verified."""
    refusal_of: Callable[[ErrorCode], ErrorCode] = lambda code: code
    """Maps the coordinator's error to the error for the client."""
    is_from_coordinator: bool = False
    """A group coordinator writes for the producer, without sequence numbers."""
    still_holds: Callable[[], ErrorCode] = lambda: ErrorCode.NONE
    """Called after the coordinator's response. Returns the error that now forbids the append, else
    NONE."""
