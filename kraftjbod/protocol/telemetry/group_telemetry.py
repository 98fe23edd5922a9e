"""PURE. Records of ``__group_telemetry``: how far consumer groups are behind, as coordinators say.

One JSON object per record, keys as the fields of :class:`~.storage_telemetry.Origin` and
:class:`LagSample`, kind ``lag``. ``schema`` is the version; a reader takes records of its own
version and older, and finds fields that it does not know harmless. docs/group-telemetry.md says
the same for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.telemetry.storage_telemetry import Origin, encode_sample

TOPIC: Final = "__group_telemetry"
KIND: Final = "lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """What one group has committed for one partition, and how much there is beyond.

    * ``group_type``: classic or consumer (KIP-848); ``state`` is Kafka's name of it, ``members``
      how many the whole group has.
    * ``log_end_offset`` and ``lag``, in records, are None if the partition's leader did not answer.
      The end is that of what is replicated, as ``kraftjbod-consumer-groups`` shows it.
    """

    group_id: str
    group_type: str
    state: str
    members: int
    topic: str
    topic_id: str
    partition: int
    committed_offset: int
    committed_ms: int
    log_end_offset: int | None
    lag: int | None


def encode(origin: Origin, sample: LagSample) -> bytes:
    """The value of one record."""
    return encode_sample(KIND, origin, sample)


def record_key(sample: LagSample) -> bytes:
    """Records of one group and partition have one key, whoever coordinates."""
    return f"{sample.group_id}:{sample.topic}-{sample.partition}".encode()
