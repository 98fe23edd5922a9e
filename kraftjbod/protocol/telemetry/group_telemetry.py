"""PURE. Records of ``__group_telemetry``: the lag of consumer groups, reported by coordinators.

A record is one JSON object, whose keys are the fields of :class:`~.storage_telemetry.Origin` and of
:class:`LagSample`, ``kind`` (``"lag"``) and ``schema`` (the version). A reader accepts its own and
older versions, and ignores unknown fields. docs/group-telemetry.md documents the format for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.telemetry.storage_telemetry import Origin, encode_sample

TOPIC: Final = "__group_telemetry"
KIND: Final = "lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """The committed offset of a group in one partition, and its lag.

    * ``group_type``: classic or consumer (KIP-848). ``state`` is Kafka's name of the group's state,
      and ``members`` the number of members of the whole group.
    * ``log_end_offset`` and ``lag``, in records, are None if the partition's leader did not
      respond. The end is the replicated end, as in ``kraftjbod-consumer-groups``.
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
    """Return the value of the record with ``sample``."""
    return encode_sample(KIND, origin, sample)


def record_key(sample: LagSample) -> bytes:
    """Return the key of the record: group, topic and partition, whichever broker is the
    coordinator."""
    return f"{sample.group_id}:{sample.topic}-{sample.partition}".encode()
