"""PURE. Settings of the topics ``__storage_telemetry`` and ``__group_telemetry``.

Telemetry is a topic, so that the history survives the broker and the disk that it describes.
Retention is limited in time and bytes, with segments small enough for these limits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.protocol.telemetry import group_telemetry, storage_telemetry

#: Number of segments per retained size.
_SEGMENTS: Final = 8
_SMALLEST_SEGMENT_BYTES: Final = 256 * 1024
#: Larger than any batch of samples, independent of the limit of other topics.
_MAX_MESSAGE_BYTES: Final = 1024 * 1024


class TelemetryBounds(NamedTuple):
    """Number of partitions, replication factor and retention of a telemetry topic, from the
    broker's configuration.
    """

    partitions: int
    replication_factor: int
    retention_ms: int
    retention_bytes: int
    """Per partition."""


def storage_telemetry_topic(bounds: TelemetryBounds) -> InternalTopic:
    return _topic(
        storage_telemetry.TOPIC, bounds, "kraftjbod/protocol/telemetry/storage_telemetry.py"
    )


def group_telemetry_topic(bounds: TelemetryBounds) -> InternalTopic:
    return _topic(group_telemetry.TOPIC, bounds, "kraftjbod/protocol/telemetry/group_telemetry.py")


def _topic(name: str, bounds: TelemetryBounds, schema: str) -> InternalTopic:
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": bounds.retention_ms,
        "retention.bytes": bounds.retention_bytes,
        "segment.ms": max(1, bounds.retention_ms // _SEGMENTS),
        "segment.bytes": max(bounds.retention_bytes // _SEGMENTS, _SMALLEST_SEGMENT_BYTES),
        "min.insync.replicas": 1,
        "max.message.bytes": _MAX_MESSAGE_BYTES,
        "message.timestamp.type": "CreateTime",
    }
    return InternalTopic(
        name=name,
        num_partitions=bounds.partitions,
        replication_factor=bounds.replication_factor,
        configs={key: str(value) for key, value in configs.items()},
        takes_fewer_replicas=True,
        is_closed=False,
        schema=schema,
    )
