"""PURE. What ``__storage_telemetry`` is made like.

It is bounded in time and in bytes, with segments small enough for that to mean something.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.protocol.storage_telemetry import TOPIC

#: Parts of what is retained that go at once.
_SEGMENTS: Final = 8
_SMALLEST_SEGMENT_BYTES: Final = 256 * 1024
#: More than a batch of samples ever has, whatever is allowed in other topics.
_MAX_MESSAGE_BYTES: Final = 1024 * 1024


def storage_telemetry_topic(
    *, partitions: int, replication_factor: int, retention_ms: int, retention_bytes: int
) -> InternalTopic:
    """:param retention_bytes: per partition."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": retention_ms,
        "retention.bytes": retention_bytes,
        "segment.ms": max(1, retention_ms // _SEGMENTS),
        "segment.bytes": max(retention_bytes // _SEGMENTS, _SMALLEST_SEGMENT_BYTES),
        "min.insync.replicas": 1,
        "max.message.bytes": _MAX_MESSAGE_BYTES,
        "message.timestamp.type": "CreateTime",
    }
    return InternalTopic(
        name=TOPIC,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs={key: str(value) for key, value in configs.items()},
        takes_fewer_replicas=True,
        is_closed=False,
        schema="kraftjbod/protocol/storage_telemetry.py",
    )
