"""PURE. Common rules of coordinators: the partition of a key, and the codes for failed writes.

By Kafka's rule, a group or transactional id belongs to one partition of an internal topic. The
leader of that partition is the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftjbod.core.errors import ErrorCode
from kraftjbod.metadata.state import MetadataState

#: Responses to a write that failed, by Kafka's table; other codes are returned unchanged.
_TOLD: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # Kafka's brokers never return it here, and clients treat it as fatal.
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def code_of_write(code: ErrorCode) -> ErrorCode:
    """Return the error code for the client if a coordinator's write ended with ``code``."""
    return _TOLD.get(code, code)


def partition_of(state: MetadataState, topic_name: str, key: str) -> int | None:
    """Return the partition of ``key`` in an internal topic; None if the topic does not exist."""
    topic = state.topic(topic_name)
    return None if topic is None else abs(java_hash(key)) % len(topic.partitions)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of ``text``, a signed 32-bit number. The result is 0
    instead of -2**31, as in Kafka's ``Utils.abs``.
    """
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else signed
