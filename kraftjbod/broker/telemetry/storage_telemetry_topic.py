"""PURE. The topic that brokers tell of their disks in: what it is made like, and when.

Whichever broker finds it missing asks for it; several may, and the first one has it.

* It gets as many replicas as it shall have as soon as so many brokers are alive. With fewer, a
  broker waits :data:`PATIENCE_ROUNDS` rounds for more to come, then takes as many as there are.
* Where the controller finds too few brokers that can take replicas, one fewer is asked for.
* It is bounded in time and in bytes, with segments small enough for that to mean something.

Growing it later is an operator's choice, as with any topic. Deleted, it comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.rpc_messages import CreateTopicsRequest, NewTopic
from kraftjbod.protocol.storage_telemetry import TOPIC

PATIENCE_ROUNDS: Final = 3
#: Parts of what is retained that go at once.
_SEGMENTS: Final = 8
_SMALLEST_SEGMENT_BYTES: Final = 256 * 1024
#: More than a batch of samples ever has, whatever is allowed in other topics.
_MAX_MESSAGE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryTopicSettings:
    """What the topic shall be."""

    partitions: int
    replication_factor: int
    retention_ms: int
    retention_bytes: int
    """Per partition."""

    def creation(self, replication_factor: int) -> CreateTopicsRequest:
        """The request for it with so many replicas."""
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": self.retention_ms,
            "retention.bytes": self.retention_bytes,
            "segment.ms": max(1, self.retention_ms // _SEGMENTS),
            "segment.bytes": max(self.retention_bytes // _SEGMENTS, _SMALLEST_SEGMENT_BYTES),
            "min.insync.replicas": 1,
            "max.message.bytes": _MAX_MESSAGE_BYTES,
            "message.timestamp.type": "CreateTime",
        }
        topic = NewTopic(
            name=TOPIC,
            num_partitions=self.partitions,
            replication_factor=replication_factor,
            configs={key: str(value) for key, value in configs.items()},
        )
        return CreateTopicsRequest(topics=(topic,))


class TelemetryTopicPlan:
    """One broker's patience; asked once per round."""

    def __init__(self, *, replication_factor: int, patience_rounds: int = PATIENCE_ROUNDS) -> None:
        self._wanted = replication_factor
        self._patience_rounds = patience_rounds
        self._rounds_missing = 0
        #: Brokers that are alive and take no replicas, as far as refusals tell.
        self._useless = 0

    def there(self) -> None:
        """The topic exists."""
        self._rounds_missing = self._useless = 0

    def missing(self, alive_brokers: int) -> int | None:
        """It does not: with how many replicas to ask for it now; None: not yet."""
        self._rounds_missing += 1
        possible = min(self._wanted, max(1, alive_brokers - self._useless))
        if possible < self._wanted and self._rounds_missing <= self._patience_rounds:
            return None
        return possible

    def refused(self) -> None:
        """Too few brokers can take replicas for what :meth:`missing` said last."""
        self._useless += 1
