"""PURE. ``Ledger``: what producers were told and consumers saw, and whether a log agrees.

A record's value names its stream and its number there, so that it is unique and says where it
belongs. What was sent and never answered is in doubt: it may be in the log, once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Ack(NamedTuple):
    """The cluster said that record ``number`` of its stream is at ``offset``."""

    number: int
    offset: int
    at_ms: int


def value_of(stream: str, number: int) -> bytes:
    return f"{stream}:{number}".encode()


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
    #: Numbers of records whose fate nobody was told.
    in_doubt: set[int] = field(default_factory=set)

    @property
    def end_offset(self) -> int:
        """After the last acknowledged record."""
        return self.acks[-1].offset + 1 if self.acks else 0

    def take_ack(self, number: int, offset: int, at_ms: int) -> str:
        """Note an acknowledgement; what is wrong with it, or an empty text."""
        wrong = ""
        if self.acks and offset <= self.acks[-1].offset:
            wrong = (
                f"{self.name}: record {number} was acknowledged at offset {offset}, and record "
                f"{self.acks[-1].number} before it at {self.acks[-1].offset}"
            )
        self.acks.append(Ack(number, offset, at_ms))
        return wrong


class Ledger:
    """All streams, and what consumers saw of each partition."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        #: By topic and partition, then by offset.
        self.seen: defaultdict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)

    @property
    def acked(self) -> int:
        return sum(len(stream.acks) for stream in self.streams.values())

    def add(self, stream: Stream) -> Stream:
        assert stream.name not in self.streams, stream
        self.streams[stream.name] = stream
        return stream

    def acked_end(self, topic: str, partition: int) -> int:
        """After the last record of the partition that acks=all acknowledged."""
        ends = (
            stream.end_offset
            for stream in self.streams.values()
            if stream.acks_all and (stream.topic, stream.partition) == (topic, partition)
        )
        return max(ends, default=0)

    def acked_ms(self, topic: str, partition: int) -> list[int]:
        """When records of the partition were acknowledged, in order."""
        return sorted(
            ack.at_ms
            for stream in self.streams.values()
            if (stream.topic, stream.partition) == (topic, partition)
            for ack in stream.acks
        )

    def saw(self, topic: str, partition: int, offset: int, value: bytes) -> str:
        """A consumer read ``value``; what is wrong with that, or an empty text."""
        before = self.seen[topic, partition].setdefault(offset, value)
        if before != value:
            return (
                f"{topic}-{partition} offset {offset} was read as {before.decode()} and later as "
                f"{value.decode()}"
            )
        return ""

    def judge(self, topic: str, partition: int, log: Mapping[int, bytes]) -> list[str]:
        """What is wrong with a partition whose records are these, by offset; one sentence each."""
        name = f"{topic}-{partition}"
        findings = [
            f"{name} offset {offset}: a consumer read {value.decode()}, now "
            + (log[offset].decode() if offset in log else "nothing is there")
            for offset, value in self.seen[topic, partition].items()
            if log.get(offset) != value
        ]
        for stream in self.streams.values():
            if (stream.topic, stream.partition) == (topic, partition) and stream.acks_all:
                findings += _lost(stream, name, log)
                findings += _doubled(stream, name, log.items())
        return findings


def _lost(stream: Stream, name: str, log: Mapping[int, bytes]) -> list[str]:
    findings = []
    for ack in stream.acks:
        wanted, found = value_of(stream.name, ack.number), log.get(ack.offset)
        if found != wanted:
            held = "nothing" if found is None else found.decode()
            findings.append(
                f"{name} offset {ack.offset}: {wanted.decode()} was acknowledged at "
                f"{ack.at_ms / 1000:.3f} s, and {held} is there"
            )
    return findings


def _doubled(stream: Stream, name: str, log: Iterable[tuple[int, bytes]]) -> list[str]:
    """An idempotent producer's records are there once, and in the order in which it sent them."""
    findings, last = [], -1
    for offset, value in log:
        of, number = parse_value(value)
        if of == stream.name:
            if number <= last:
                findings.append(f"{name} offset {offset}: {value.decode()} comes after {last}")
            last = number
    return findings
