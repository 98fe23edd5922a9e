"""Values for the fields of generated requests: mostly plausible ones, and all boundary values.

A :class:`World` has the cluster's topics, ids and paths, so that requests pass the first check.
Plausible values are chosen by a field's name, boundary values by its type.

Values that would take effect and end the run are left out: the ids of live brokers in heartbeats,
the removal of their directories, a lower metadata.version, the topics of the healthy clients.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import crc32c

from kraftjbod.protocol.records import Record, build_batch

#: The bytes of a batch from here on are covered by its CRC.
_CRC_END: Final = 21
BITS: Final = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_ODD_TEXTS: Final = (
    "",
    ".",
    "..",
    "a/b",
    "nul\0nul",
    "ä€😀",
    "x" * 249,
    "x" * 250,
    "x" * 32_767,
    "-1",
    "9" * 50,
    "9" * 5_000,
    "null",
    "*",
    "any",
    "\n",
    "__cluster_metadata",
    "__storage_telemetry",
    "__group_telemetry",
    "__consumer_offsets",
    "__transaction_state",
)
_CONFIGS: Final = {
    "retention.ms": ("-1", "0", "1000", "9223372036854775808", "x"),
    "cleanup.policy": ("compact", "delete", "compact,delete", "", "none"),
    "segment.bytes": ("1024", "4096", "1", "-5"),
    "max.message.bytes": ("0", "100", "1048588"),
    "min.insync.replicas": ("1", "2", "0", "99"),
    "min.cleanable.dirty.ratio": ("0.01", "nan", "inf", "1e400"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "nope"),
    "leader.replication.throttled.replicas": ("*", "0:1", "0:1," * 100, ":"),
    "leader.replication.throttled.rate": ("1", "1000000", "-1"),
    "cordoned.log.dirs": ("", "/nowhere", "nowhere"),
    "unclean.leader.election.enable": ("true", "false", "maybe"),
    "consumer.session.timeout.ms": ("50000", "1", "60000", "x"),
    "consumer.heartbeat.interval.ms": ("5000", "15000", "0"),
    "consumer.assignment.interval.ms": ("0", "1000", "-1"),
    "no.such.key": ("1",),
}


#: The first producer ids that brokers allocate, and -1 for none.
_PRODUCERS: Final = (0, 1, 2, 1_000, 1_001, -1)
_PARTITIONS: Final = (0, 0, 0, 1, 2, 3, -1)
#: Plausible numbers by the name of a field.
_BY_NAME: Final[Mapping[str, Sequence[int]]] = {
    "partition": _PARTITIONS,
    "partition_index": _PARTITIONS,
    "partition_id": _PARTITIONS,
    "partitions": _PARTITIONS,
    "index": _PARTITIONS,
    "partition_indexes": (0, 1, 2),
    # A valid large number would create that many partitions.
    "num_partitions": (-1, 0, 1, 2, 3, 2**31 - 1),
    "count": (-1, 0, 1, 2, 3, 2**31 - 1),
    "replication_factor": (-1, 0, 1, 1, 2, 3, 32_767),
    "replica_id": (-1, -1, -2, 1, 2, 9),
    "resource_type": (2, 2, 4, 4, 32, 32, 0, 8, 127),
    "config_operation": (0, 1, 2, 3, 4, -1),
    "operation": (0, 1, 2, 3, 4, -1),
    "acks": (-1, 1, 1, 0, 2),
    "timestamp": (0, -1, -2, -3, 1, 10**12),
    "session_id": (0, 0, 1, 10**9),
    "member_epoch": (0, 0, 0, -1, -2, 1, 2, 3, 4),
    "generation_id": (-1, -1, 0, 1, 2, 3),
    "generation_id_or_member_epoch": (-1, -1, 0, 1, 2, 3),
    "producer_id": _PRODUCERS,
    "producer_epoch": (0, 0, 1, 2, -1, 32_767),
    "key_type": (0, 0, 1, 1, 2, -1),
    "voter_id": (3000, 1, 2, 7, -1),
    "port": (1, 9092, 65_535, 0, 65_536),
}
_GROUPS: Final = ("group-a", "group-b", "group-c")
#: Plausible texts by the name of a field: so few that requests concern the same members.
_TEXTS: Final[Mapping[str, Sequence[str]]] = {
    "member_id": ("", "one", "two", "three"),
    "group_id": _GROUPS,
    "groups": _GROUPS,
    "groups_names": _GROUPS,
    "group_ids": _GROUPS,
    "transactional_id": _GROUPS,
    "v3_and_below_transactional_id": _GROUPS,
    "transactional_ids": _GROUPS,
    "key": _GROUPS,
    "coordinator_keys": _GROUPS,
    "protocol_type": ("consumer", "consumer", "connect", ""),
    "protocol_name": ("range", "range", "sticky"),
    "states_filter": ("Stable", "Empty", "nope"),
    "types_filter": ("classic", "consumer", "nope"),
    "state_filters": ("Ongoing", "Empty", "CompleteCommit", "nope"),
    "instance_id": ("first", "second"),
    "server_assignor": ("uniform", "range", "nope"),
    "subscribed_topic_regex": ("fuzz-.*", ".*", "(a+)+b", "(", ""),
}
#: Subscription and assignment of a classic consumer of fuzz-0, encoded as Kafka's clients do.
_BLOBS: Final[Mapping[str, bytes]] = {
    "metadata": b"\0\1\0\0\0\1\0\6fuzz-0\xff\xff\xff\xff\0\0\0\0",
    "assignment": b"\0\1\0\0\0\1\0\6fuzz-0\0\0\0\1\0\0\0\0\xff\xff\xff\xff",
}
#: Plausible numbers by a part of a field's name.
_BY_PART: Final[Mapping[str, Sequence[int]]] = {
    # Long waits would only delay the requests behind them on the connection.
    "_ms": (-1, 0, 0, 1, 20),
    "epoch": (-1, 0, 1),
    "offset": (-2, -1, 0, 0, 1, 5, 1_000, 2**62),
    "bytes": (0, 1, 100, 4_096, 1 << 20, 2**31 - 1),
}


@dataclass(slots=True, kw_only=True)
class World:
    """The names and ids in the cluster that requests may use."""

    #: Ids of the existing topics by name.
    topics: dict[str, bytes] = field(default_factory=lambda: {"fuzz-0": b"0" * 16})
    #: Names of topics that requests create and delete.
    passing: tuple[str, ...] = tuple(f"passing-{number}" for number in range(12))
    brokers: tuple[int, ...] = (1, 2)
    log_dirs: tuple[str, ...] = ("/nowhere",)
    directory_ids: tuple[bytes, ...] = (b"d" * 16,)
    cluster_id: str = "cluster"


class Values:
    """Draws values; the same seed and the same calls give the same values."""

    def __init__(self, rng: random.Random, world: World) -> None:
        self.rng = rng
        self.world = world
        self._batches = [self._batch() for _ in range(50)]

    def integer(self, name: str, bits: int, *, signed: bool = True) -> int:
        if "broker_epoch" in name:
            # Live brokers have small epochs, so these never match.
            return self.rng.choice((-1, 10**12))
        if self.rng.random() < 0.85:
            sensible = self._sensible(name)
            if sensible:
                return self.rng.choice(sensible)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        near = (low, low + 1, -2, -1, 0, 1, 2, 7, 100, high - 1, high, self.rng.randint(low, high))
        return min(max(self.rng.choice(near), low), high)

    def _sensible(self, name: str) -> Sequence[int]:
        """Return plausible numbers for the field ``name``; empty if any number will do."""
        if name in ("broker_ids", "replicas", "isr") or name.endswith("broker_id"):
            return (*self.world.brokers, *self.world.brokers, 7, 8, -1)
        if name in _BY_NAME:
            return _BY_NAME[name]
        return next((few for part, few in _BY_PART.items() if part in name), ())

    def text(self, name: str, owner: str = "") -> str:
        choice = self.rng.choice
        draw = self.rng.random()
        if draw < 0.08:
            return choice(_ODD_TEXTS)
        if name in ("path", "target_directories", "target_dirs", "target"):
            # A directory named in AlterLogDirs would be detached.
            return choice(
                ("/nowhere", "any") if name == "target" else (*self.world.log_dirs, "any")
            )
        if name == "resource_name":
            return choice((*self.world.topics, "1", "2", "", "7", "fuzz-absent", "group-a"))
        if name in ("configuration_keys", "config_name") or owner.endswith("Config"):
            return choice(tuple(_CONFIGS)) if name != "value" else choice(self._config_values())
        if name == "value":
            return choice(self._config_values())
        if name == "cluster_id":
            return choice((self.world.cluster_id, self.world.cluster_id, "other"))
        if name in _TEXTS:
            return choice(_TEXTS[name])
        if owner == "JoinGroupRequestProtocol":
            return choice(("range", "range", "sticky"))
        if name in ("feature", "features"):
            return choice(("kraft.version", "nope"))
        if owner.startswith(("Creatable", "NewTopic", "Deletable", "DeleteTopic", "TopicRef")):
            return choice(self.world.passing)
        if name in ("topic_names",):
            return choice(self.world.passing)
        return choice((*self.world.topics, *self.world.topics, *self.world.passing))

    def _config_values(self) -> tuple[str, ...]:
        return self.rng.choice(tuple(_CONFIGS.values()))

    def blob(self, name: str) -> bytes:
        if name in _BLOBS and self.rng.random() < 0.7:
            return _BLOBS[name]
        return self.rng.randbytes(self.rng.randrange(20))

    def uuid(self, name: str) -> bytes:
        if self.rng.random() < 0.8:
            known = self.world.directory_ids if "dir" in name else self.world.topics.values()
            return self.rng.choice(tuple(known))
        return self.rng.choice((bytes(16), bytes(15) + b"\1", self.rng.randbytes(16)))

    def records(self) -> bytes | None:
        draw = self.rng.random()
        if draw < 0.05:
            return self.rng.choice((None, b"", b"\0" * 61, self.rng.randbytes(80)))
        batch = self.rng.choice(self._batches)
        if draw < 0.15:
            return batch + self.rng.choice(self._batches)
        if draw < 0.35:
            wrong = bytearray(batch)
            wrong[self.rng.randrange(len(wrong))] ^= 1 << self.rng.randrange(8)
            return bytes(wrong)
        if draw < 0.55:
            return self._sealed(bytearray(batch))
        return batch

    def _sealed(self, wrong: bytearray) -> bytes:
        """Return the spoilt batch with a CRC that matches it."""
        for _ in range(self.rng.randrange(1, 4)):
            wrong[self.rng.randrange(_CRC_END, len(wrong))] = self.rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, self.rng.randrange(256))
            )
        struct.pack_into(">I", wrong, _CRC_END - 4, crc32c.crc32c(memoryview(wrong)[_CRC_END:]))
        return bytes(wrong)

    def _batch(self) -> bytes:
        rng = self.rng
        records = [
            Record(
                key=rng.choice((None, b"", b"k%d" % rng.randrange(3))),
                value=rng.choice((None, b"", rng.randbytes(rng.randrange(100)))),
                timestamp_ms=rng.choice((0, 1, 10**12)),
            )
            for _ in range(rng.randrange(1, 6))
        ]
        if rng.random() < 0.6:
            return bytes(build_batch(records))
        batch = build_batch(
            records,
            producer_id=rng.choice(_PRODUCERS),
            producer_epoch=rng.choice((0, 0, 1)),
            base_sequence=rng.choice((0, 0, 5)),
            is_transactional=rng.random() < 0.7,
            is_control=rng.random() < 0.05,
        )
        return bytes(batch)

    def length(self) -> int:
        """Return a length for an array."""
        return self.rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 8))

    def is_null(self) -> bool:
        return self.rng.random() < 0.1
