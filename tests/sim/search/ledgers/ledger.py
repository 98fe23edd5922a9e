"""``Ledger``: what producers sent, what was acknowledged and read, and whether a log agrees.

* A record's value names its stream and its number there, so that it is unique and identifies its
  partition. A record without an answer is in doubt: it may be in the log, once.
* A record that acks=1 acknowledged may be lost only with its leader. A record of acks=0 may be lost
  at any time. A log has the records of a producer in the order in which they were sent.
* A key identifies a topic: its name, or :func:`incarnation` for topics that are recreated under the
  same name. :meth:`Ledger.key_of` finds the key by the topic id.
* A log may start later after a DeleteRecords request (KIP-107), or by retention. Once that is
  acknowledged, it never starts earlier again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kraftjbod.core.ids import TopicId
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS

#: Log start offset without an upper limit.
ANYWHERE: Final = 2**63 - 1
#: A producer's timestamps go back by so many steps of that length, as with several clocks.
_STAMPS: Final = 5
_STAMP_STEP_MS: Final = 700


class Ack(NamedTuple):
    """An acknowledgement that record ``number`` of its stream is at ``offset``."""

    number: int
    offset: int
    at_ms: int
    sent_ms: int = 0
    leader: int = -1
    """The broker that acknowledged it; -1 if the producer does not know it."""
    stamped_ms: int = 0
    """The timestamp of the record."""


class StampedOffset(NamedTuple):
    """An acknowledged record and its timestamp."""

    offset: int
    stamped_ms: int


class Reign(NamedTuple):
    """``leader`` leads a partition since ``since_ms``, in one leader epoch."""

    leader: int
    since_ms: int


def incarnation(topic: str, topic_id: TopicId) -> str:
    """Return the key of a topic whose name may be used again."""
    return f"{topic}@{topic_id}"


def value_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number}".encode()


def stamped_ms(number: int, now_ms: int) -> int:
    """Return the timestamp of a producer's record: in order of offsets, timestamps go back too."""
    return WORLD_BEGAN_MS + now_ms - number % _STAMPS * _STAMP_STEP_MS


def parse_value(value: bytes) -> tuple[str, int]:
    stream, _, number = value.decode().rpartition(":")
    return stream, int(number)


@dataclass(slots=True, kw_only=True)
class Stream:
    """One producer's records of one partition; ``name`` is unique."""

    name: str
    topic: str
    partition: int
    acks_all: bool = True
    acks: list[Ack] = field(default_factory=list)
    next_number: int = 0
    #: Numbers of records without an answer.
    in_doubt: set[int] = field(default_factory=set)

    @property
    def end_offset(self) -> int:
        """Return the offset after the last acknowledged record."""
        return self.acks[-1].offset + 1 if self.acks else 0

    def take_ack(
        self,
        number: int,
        offset: int,
        at_ms: int,
        *,
        sent_ms: int = 0,
        leader: int = -1,
        stamped_ms: int = 0,
    ) -> str:
        """Note an acknowledgement; return the violation or an empty text."""
        wrong = ""
        if self.acks and offset <= self.acks[-1].offset:
            wrong = (
                f"{self.name}: record {number} was acknowledged at offset {offset}, and record "
                f"{self.acks[-1].number} before it at {self.acks[-1].offset}"
            )
        self.acks.append(Ack(number, offset, at_ms, sent_ms, leader, stamped_ms))
        return wrong


class Ledger:
    """All streams, the records that consumers read, and the allowed log start offsets."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self._streams_of: defaultdict[tuple[str, int], list[Stream]] = defaultdict(list)
        #: By topic and partition: values by offset.
        self.seen: defaultdict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        #: By topic and partition: the acknowledged log start offset of DeleteRecords.
        self.starts: dict[tuple[str, int], int] = {}
        #: By topic and partition: the largest requested log start offset.
        self._asked_starts: dict[tuple[str, int], int] = {}
        #: Partitions with an unanswered DeleteRecords request.
        self.open_starts: set[tuple[str, int]] = set()
        #: ``retention.bytes`` of topics that have it. Their replicas may start at any offset.
        self.retained_bytes: dict[str, int] = {}
        #: By topic and partition: the greatest high watermark that a consumer received.
        self._high_watermarks: defaultdict[tuple[str, int], int] = defaultdict(int)
        #: Keys by topic id.
        self._keys: dict[TopicId, str] = {}

    @property
    def topics(self) -> set[str]:
        """The names of all topics that have a stream."""
        return {key.partition("@")[0] for key, _ in self._streams_of}

    @property
    def loose(self) -> set[tuple[str, int]]:
        """Topics and partitions whose producers do not use acks=all."""
        streams = self.streams.values()
        return {(one.topic, one.partition) for one in streams if not one.acks_all}

    @property
    def acked(self) -> int:
        return sum(len(stream.acks) for stream in self.streams.values())

    def add(self, stream: Stream) -> Stream:
        assert stream.name not in self.streams, stream
        self.streams[stream.name] = stream
        self._streams_of[stream.topic, stream.partition].append(stream)
        return stream

    def add_incarnation(self, topic: str, topic_id: TopicId) -> str:
        """Add a topic whose name may be used again, and return its key."""
        return self._keys.setdefault(topic_id, incarnation(topic, topic_id))

    def key_of(self, topic: str, topic_id: TopicId | None) -> str:
        """Return the key of the topic with that id."""
        return topic if topic_id is None else self._keys.get(topic_id, topic)

    def is_known(self, topic_id: TopicId) -> bool:
        """Return whether :meth:`add_incarnation` has added the topic."""
        return topic_id in self._keys

    def acked_end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record of the partition that acks=all acknowledged."""
        streams = self._streams_of.get((topic, partition), ())
        return max((one.end_offset for one in streams if one.acks_all), default=0)

    def acknowledged(self, topic: str, partition: int) -> list[StampedOffset]:
        """Return the records of the partition that acks=all acknowledged, deleted ones included."""
        streams = self._streams_of.get((topic, partition), ())
        return [
            StampedOffset(ack.offset, ack.stamped_ms)
            for stream in streams
            if stream.acks_all
            for ack in stream.acks
        ]

    def note_high_watermark(self, topic: str, partition: int, offset: int) -> None:
        """Note a high watermark that a consumer received. Later ones may be lower for a while."""
        key = topic, partition
        self._high_watermarks[key] = max(self._high_watermarks[key], offset)

    def committed_end(self, topic: str, partition: int) -> int:
        """Return the offset up to which records must not be lost.

        A producer with acks=all received an acknowledgement, or a consumer the high watermark.
        """
        return max(self.acked_end(topic, partition), self._high_watermarks[topic, partition])

    def acked_ms(self, topic: str, partition: int) -> list[int]:
        """Return the times of the partition's acknowledgements, in order."""
        streams = self._streams_of.get((topic, partition), ())
        return sorted(ack.at_ms for stream in streams for ack in stream.acks)

    def saw(self, topic: str, partition: int, offset: int, value: bytes) -> str:
        """Note that a consumer read ``value``; return the violation or an empty text."""
        before = self.seen[topic, partition].setdefault(offset, value)
        if before != value:
            return (
                f"{topic}-{partition} offset {offset} was read as {before.decode()} and later as "
                f"{value.decode()}"
            )
        return self._astray(topic, partition, offset, value)

    def read_loosely(self, topic: str, partition: int, offset: int, value: bytes) -> str:
        """Note a read ``value`` that may be lost later; return the violation or an empty text."""
        return self._unsent(f"{topic}-{partition} offset {offset}", value) or self._astray(
            topic, partition, offset, value
        )

    def _unsent(self, where: str, value: bytes) -> str:
        """Return the violation if no producer sent the record, or an empty text."""
        name, _, number = value.decode(errors="replace").rpartition(":")
        stream = self.streams.get(name)
        if stream is not None and number.isdecimal() and int(number) < stream.next_number:
            return ""
        return f"{where}: {value!r} is there, and no producer sent it"

    # --- where logs start ------------------------------------------------------------------------

    def asks_start(self, topic: str, partition: int, offset: int) -> None:
        """Note a DeleteRecords request: the log may start at ``offset`` or before."""
        key = topic, partition
        self._asked_starts[key] = max(self._asked_starts.get(key, 0), offset)

    def leaves_start_open(self, topic: str, partition: int) -> None:
        """Note an unanswered request: some replicas may start at its offset."""
        self.open_starts.add((topic, partition))

    def may_start(self, topic: str, partition: int) -> int:
        """Return the latest allowed log start offset."""
        if topic in self.retained_bytes:
            return ANYWHERE
        return self._asked_starts.get((topic, partition), 0)

    def take_start(self, topic: str, partition: int, asked: int, start: int) -> str:
        """Note a DeleteRecords answer with log start ``start``; return the violation or ``""``."""
        before = self.starts.get((topic, partition), 0)
        self.starts[topic, partition] = max(before, start)
        if start < asked:  # Less than before it may be: of a replica that is back since.
            return f"{topic}-{partition}: DeleteRecords up to {asked} is said to start at {start}"
        return ""

    def wrong_start(self, topic: str, partition: int, start: int) -> str:
        """Return the violation if a log starts at ``start``, or an empty text."""
        least, most = self.starts.get((topic, partition), 0), self.may_start(topic, partition)
        if start < least:
            return f"{topic}-{partition} starts at {start}, and was acknowledged to at {least}"
        if start > most:
            return (
                f"{topic}-{partition} starts at {start}, and no client asked for more than {most}"
            )
        return ""

    # --- a log -----------------------------------------------------------------------------------

    def judge(
        self,
        topic: str,
        partition: int,
        log: Mapping[int, bytes],
        start: int = 0,
        reign: Reign | None = None,
    ) -> list[str]:
        """Return the violations of a partition with these records by offset; one sentence each.

        :param start: log start offset; records before it may be there or not.
        :param reign: the last leader; None: no record of acks=1 must be there.
        """
        name = f"{topic}-{partition}"
        wrong = self.wrong_start(topic, partition, start)
        findings = [wrong] if wrong else []
        findings += [
            f"{name} offset {offset}: a consumer read {value.decode()}, now "
            + (log[offset].decode() if offset in log else "nothing is there")
            for offset, value in self.seen[topic, partition].items()
            if offset >= start and log.get(offset) != value
        ]
        for offset, value in log.items():
            if stray := self._astray(topic, partition, offset, value):
                findings.append(stray)
        for stream in self._streams_of[topic, partition]:
            if stream.acks_all:
                findings += _lost(stream.name, stream.acks, name, log, start)
                findings += _doubled(stream, name, log.items())
                continue
            if reign is not None:
                kept = [
                    ack
                    for ack in stream.acks
                    if ack.leader == reign.leader and ack.sent_ms > reign.since_ms
                ]
                findings += _lost(stream.name, kept, name, log, start)
            findings += _reordered(stream, name, log.items())
        return findings

    def _astray(self, topic: str, partition: int, offset: int, value: bytes) -> str:
        """Return the violation if the record was written to another partition, or an empty text."""
        stream = self.streams.get(value.decode(errors="replace").rpartition(":")[0])
        if stream is None or (stream.topic, stream.partition) == (topic, partition):
            return ""
        return (
            f"{topic}-{partition} offset {offset}: {value.decode()} is of "
            f"{stream.topic}-{stream.partition}"
        )


def _lost(
    stream: str, acks: Iterable[Ack], name: str, log: Mapping[int, bytes], start: int
) -> list[str]:
    findings = []
    for ack in acks:
        if ack.offset < start:
            continue
        wanted, found = value_of(stream, ack.number), log.get(ack.offset)
        if found != wanted:
            held = "nothing" if found is None else found.decode()
            findings.append(
                f"{name} offset {ack.offset}: {wanted.decode()} was acknowledged at "
                f"{ack.at_ms / 1000:.3f} s, and {held} is there"
            )
    return findings


def _doubled(stream: Stream, name: str, log: Iterable[tuple[int, bytes]]) -> list[str]:
    """Check that an idempotent producer's records are there once, in the order of sending."""
    findings, last = [], -1
    for offset, value in log:
        of, number = parse_value(value)
        if of == stream.name:
            if number <= last:
                findings.append(f"{name} offset {offset}: {value.decode()} comes after {last}")
            last = number
    return findings


def _reordered(stream: Stream, name: str, log: Iterable[tuple[int, bytes]]) -> list[str]:
    """Check a producer without idempotence: a repeated record is not after a later one."""
    findings, last = [], -1
    for offset, value in log:
        of, number = parse_value(value)
        if of == stream.name:
            if number < last:
                findings.append(f"{name} offset {offset}: {value.decode()} comes after {last}")
            last = max(last, number)
    return findings
