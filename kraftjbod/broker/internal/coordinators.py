"""PURE. What coordinators have in common: where a key belongs, and what a failed write means.

A group or transactional id belongs to one partition of an internal topic, by Kafka's rule, and is
coordinated by whoever leads that.
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
    # Kafka's brokers never answer it here, and clients take it for a fatal error.
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def code_of_write(code: ErrorCode) -> ErrorCode:
    """What a client is told whose request needed a write that ended with ``code``."""
    return _TOLD.get(code, code)


def partition_of(state: MetadataState, topic_name: str, key: str) -> int | None:
    """Which partition of an internal topic has ``key``; None while there is no such topic."""
    topic = state.topic(topic_name)
    return None if topic is None else abs(java_hash(key)) % len(topic.partitions)


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java, except that its least value is 0: that has no absolute."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else signed
