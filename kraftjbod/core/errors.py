"""PURE. The exception classes of the project, in one hierarchy with three families.

* :class:`OperatingError`: expected failures. A disk failed, the leader moved, a request was stale.
  Each has a Kafka error code. Only the listeners write that code into responses.
* :class:`ProtocolError`: invalid bytes. Remote: the peer sent them, and its connection is closed.
  Local: this process tried to send them, which is a bug.
* :class:`StartupError`: a daemon or tool cannot start. The message says what to do.

Bugs are assertions and end the process. The hierarchy has at most three levels of inheritance.

This module imports nothing of the project, so directory ids, replicas and operations are plain
types here.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's numeric error codes, as sent on the wire.

    A code of a newer peer that this version does not know keeps its number. Such a code is treated
    like any unexpected error. FOREIGN_METADATA is not Kafka's, but this project's.
    """

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    UNSUPPORTED_COMPRESSION_TYPE = 76
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    #: Not in Kafka. Sent only by controllers, and only to brokers that name a metadata log.
    FOREIGN_METADATA = 10_000

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int) or not -(1 << 15) <= value < 1 << 15:
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"UNKNOWN_ERROR_CODE_{value}", value
        return unknown

    @property
    def is_known(self) -> bool:
        """Whether this version has a name for the code."""
        return self in ErrorCode.__members__.values()


#: Codes after which a client refreshes its metadata or retries.
RETRIABLE_CODES = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
    }
)


#: Limit of an error message, which may quote the request and must fit every version of a response.
MAX_MESSAGE_CHARS = 1_000


class KraftJbodError(Exception):
    """Base class of all exceptions that this project raises on purpose."""


class OperatingError(KraftJbodError):
    """An expected failure.

    ``code`` is Kafka's error code. ``message`` says what was wrong and what to do. A longer message
    is cut to 1,000 characters.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str = "", *, code: ErrorCode | None = None) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 1] + "…"
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE_CODES


class KafkaStorageError(OperatingError):
    """The log directory that an operation needs is offline, or failed in the operation.

    The caller of the failed operation gets a subclass that names the kind of failure (KIP-18). All
    other users of the directory get this class.

    :param directory_id: id of the directory; None if it is not known, or several are meant.
    :param path: path of the directory; None likewise.
    :param replica: ``topic-partition``, if the operation was about one.
    :param operation: kind of the failed operation, the value of an ``OpKind``; None if the
        directory was offline before.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(
        self,
        message: str,
        *,
        directory_id: bytes | None = None,
        path: str | None = None,
        replica: str | None = None,
        operation: str | None = None,
    ) -> None:
        super().__init__(message)
        self.directory_id = directory_id
        self.path = path
        self.replica = replica
        self.operation = operation


class LogAppendError(KafkaStorageError):
    """Records could not be written to a log, or the log could not be truncated."""


class LogReadError(KafkaStorageError):
    """A log could not be read, either for a request or while it was loaded."""


class LogFlushError(KafkaStorageError):
    """Written data could not be flushed to the disk."""


class LogCheckpointError(KafkaStorageError):
    """A checkpoint or another small file beside the logs could not be written."""


class LogIndexError(KafkaStorageError):
    """An index file could not be read or written. A corrupt index is no error: it is rebuilt."""


class LogRenameError(KafkaStorageError):
    """A file or directory of a replica could not be created, renamed or removed."""


class LastLogDirLostError(KafkaStorageError):
    """The last log directory of a broker went offline, so the broker has no replica to serve."""


class UnreportedLogDirError(KafkaStorageError):
    """No controller accepted the report of a failed directory within
    ``log.dir.failure.timeout.ms``.
    """


class CorruptRecordError(OperatingError):
    """A record batch fails its CRC or contradicts its header.

    :param offset: offset of the damage in this broker's own log; None if the error is about other
        data, or the offset is not known.
    """

    code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, message: str = "", *, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class InvalidRecordsError(OperatingError):
    """Some records of a batch are invalid, so the whole batch is rejected.

    :param code: INVALID_RECORD or INVALID_TIMESTAMP.
    :param records: index in the batch and reason of the first few invalid records.
    """

    def __init__(
        self, message: str, *, code: ErrorCode, records: tuple[tuple[int, str], ...]
    ) -> None:
        super().__init__(message, code=code)
        self.records = records


class OffsetOutOfRangeError(OperatingError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class NotLeaderOrFollowerError(OperatingError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class UnknownTopicOrPartitionError(OperatingError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class RequestTimedOutError(OperatingError):
    code = ErrorCode.REQUEST_TIMED_OUT


class ForeignMetadataError(OperatingError):
    """A controller's metadata log differs from the log that the broker has followed, or is shorter.

    Also raised if two controllers hold different logs. The broker must not apply this log until an
    operator restores the right one or makes the broker forget the previous one.
    """

    code = ErrorCode.FOREIGN_METADATA


class NotControllerError(OperatingError):
    code = ErrorCode.NOT_CONTROLLER


class ConnectionLostError(OperatingError):
    """The peer is unreachable or its connection broke.

    The request may or may not have been carried out.
    """

    code = ErrorCode.BROKER_NOT_AVAILABLE


class UnansweredError(OperatingError):
    """A request whose protocol has no response, such as a produce request with acks=0, failed.
    Closing the connection notifies the client.
    """


class OverloadedError(OperatingError):
    """A bounded queue or another resource of this process is exhausted. The caller may retry.

    The subclass LogDirImpairedError means that a disk is full or does not respond.
    """

    code = ErrorCode.REQUEST_TIMED_OUT


class LogDirImpairedError(OverloadedError):
    """The log directory is saturated (KIP-928) or stalled, and rejects the operation, or the
    operation itself found the disk full.

    No acknowledged record is lost. An append has not changed the log; a removal or another
    operation of several steps may be partly done. The caller may retry, because the directory
    recovers automatically. A producer refreshes its metadata and finds the new leader.

    :param directory_id: id of the directory; None if every directory rejects the operation.
    :param path: path of the directory; None likewise.
    :param state: value of its ``LogDirState``, such as ``saturated`` or ``stalled``.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(
        self, message: str, *, directory_id: bytes | None, path: str | None, state: str
    ) -> None:
        super().__init__(message)
        self.directory_id = directory_id
        self.path = path
        self.state = state


class ProtocolError(KraftJbodError):
    """Base class for bytes that violate a protocol. Only the two subclasses are raised."""

    def __init__(self, message: str) -> None:
        assert type(self) is not ProtocolError, "raise LocalProtocolError or RemoteProtocolError"
        super().__init__(message)


class LocalProtocolError(ProtocolError):
    """This process tried to send something that the protocol cannot express: a bug."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that violate the protocol; its connection is closed."""


class StartupError(KraftJbodError):
    """A daemon or tool cannot start or continue. The message says why and what to do."""


class ConfigError(StartupError):
    """A configuration value is missing or wrong. The message names the key."""


class InconsistentStorageError(StartupError):
    """The content of a disk belongs to another node, is damaged, or was never formatted."""


class MetadataDirError(StartupError):
    """The metadata directory cannot be read or written."""


class NoLogDirError(StartupError):
    """None of the broker's log directories is usable."""


class ClusterUnreachableError(StartupError):
    """No controller answered in time."""


class ClusterRefusedError(StartupError):
    """The cluster rejects this node, and would reject it again if it tried again."""


class InvalidUuidText(KraftJbodError):
    """A text or byte string is not a Kafka uuid."""


class InvalidTransition(KraftJbodError):
    """A state machine received an event that is illegal in its present state. The state did not
    change.

    ``story`` is the recent history of the machine, oldest first.
    """

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.story = story

    def __str__(self) -> str:
        story = "".join(f"\n  {line}" for line in self.story)
        return f"{self.args[0]}{story}"
