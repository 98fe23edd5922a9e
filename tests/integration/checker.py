"""Load that records every acknowledgement, and the check that no acknowledged record was lost.

:class:`Load` keeps one producer per partition busy, so that a failing partition cannot delay the
others. Each value is the next number of its partition, so that the records themselves show missing,
repeated and reordered values.
The clients are librdkafka's: a record counts as acknowledged if librdkafka reports it.

:class:`Verdict` lists what is checked. Gaps between acknowledgements are measured and printed, but
never asserted, because a busy machine is no defect."""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

READ_TIMEOUT_S: Final = 60.0
_BROKER_FIGURES: Final = [
    "state",
    "stateage",
    "outbuf_cnt",
    "waitresp_cnt",
    "tx",
    "txerrs",
    "txretries",
    "txidle",
    "req_timeouts",
    "rx",
    "rxerrs",
    "connects",
    "disconnects",
]
_PARTITION_FIGURES: Final = [
    "broker",
    "leader",
    "desired",
    "msgq_cnt",
    "xmit_msgq_cnt",
    "msgs_inflight",
    "next_ack_seq",
    "next_err_seq",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """A record that the cluster acknowledged.

    ``offset`` is None if an idempotent client knows it only from the response to a later record,
    after an error that left open whether the record was written."""

    number: int
    offset: int | None
    at_s: float


@dataclass(slots=True, kw_only=True)
class PartitionLoad:
    """A partition's producer and its results. ``acks`` is in the order of arrival."""

    partition: int
    producer: Any = None
    sent: int = 0
    waiting: int = 0
    acks: list[Ack] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: The client's statistics of a few seconds ago, as JSON.
    statistics: str = "{}"

    def on_delivery(self, number: int, error: KafkaError | None, message: Message) -> None:
        self.waiting -= 1
        if error is None:
            now_s = time.monotonic()
            self.acks.append(Ack(number=number, offset=message.offset(), at_s=now_s))
        else:
            self.failures.append(f"{number}: {error.str()}")

    def note_statistics(self, text: str) -> None:
        self.statistics = text

    def explain_client(self) -> dict[str, Any]:
        """Return the client's view of itself, its brokers and the partition."""
        printed = json.loads(self.statistics)
        topics = printed.get("topics", {}).values()
        return {
            "eos": printed.get("eos"),
            "brokers": {
                name: {key: broker[key] for key in _BROKER_FIGURES if key in broker}
                for name, broker in printed.get("brokers", {}).items()
            },
            "partition": [
                {key: topic["partitions"][str(self.partition)][key] for key in _PARTITION_FIGURES}
                for topic in topics
                if str(self.partition) in topic["partitions"]
            ],
        }

    @property
    def longest_gap_s(self) -> float:
        times = [ack.at_s for ack in self.acks]
        return max((later - sooner for sooner, later in itertools.pairwise(times)), default=0.0)


class Load:
    """Produces to every partition of one topic from ``with`` until :meth:`stop`.

    At most ``in_flight`` records of a partition wait for a response; new ones come every
    ``pause_s``."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        in_flight: int = 5,
        value_bytes: int = 100,
        pause_s: float = 0.002,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._topic = topic
        self._in_flight = in_flight
        self._value_bytes = value_bytes
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        config: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            # The client retries a failing partition for as long as a test may last.
            "message.timeout.ms": 300_000,
            "retry.backoff.max.ms": 200,
            "statistics.interval.ms": 5_000,
            **(settings or {}),
        }
        self.partitions = []
        for number in range(partitions):
            part = PartitionLoad(partition=number)
            part.producer = Producer(config | {"stats_cb": part.note_statistics}, logger=_QUIET)
            self.partitions.append(part)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def acked(self) -> int:
        """Records acknowledged so far, over all partitions."""
        return sum(len(load.acks) for load in self.partitions)

    def acked_by_partition(self) -> list[int]:
        return [len(load.acks) for load in self.partitions]

    def flowed_since(self, before: list[int], records: int = 3) -> bool:
        """Return whether every partition had ``records`` more acknowledged than ``before``."""
        self.raise_if_crashed()
        now = self.acked_by_partition()
        return all(new >= old + records for old, new in zip(before, now, strict=True))

    def explain(self) -> str:
        """Describe the state of each partition, for a test whose wait timed out."""
        now = time.monotonic()
        return "\n".join(
            f"partition {load.partition}: {len(load.acks)} acknowledged, "
            f"the last {now - load.acks[-1].at_s if load.acks else 0:.1f} s ago, "
            f"{load.waiting} waiting, failures {load.failures[-3:]}, client {load.explain_client()}"
            for load in self.partitions
        )

    def raise_if_crashed(self) -> None:
        if self._crash is not None:
            raise self._crash

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop sending, and wait until each sent record is acknowledged or failed.

        :raises AssertionError: with the partitions that still wait after ``timeout_s``."""
        self._stopping.set()
        self._thread.join()
        self.raise_if_crashed()
        deadline = time.monotonic() + timeout_s
        for load in self.partitions:
            load.producer.flush(max(0.0, deadline - time.monotonic()))
        silent = {load.partition: load.waiting for load in self.partitions if load.waiting}
        assert not silent, f"records without an answer after {timeout_s:.0f} s: {silent}"

    def write_acknowledged(self, path: Path) -> int:
        """Write acknowledged records with known offsets as JSON lines for the audit; return their
        number."""
        lines = [
            {
                "topic": self._topic,
                "partition": load.partition,
                "offset": ack.offset,
                "producer": f"load-{load.partition}",
                "sequence": ack.number,
                "value_crc": zlib.crc32(_value(ack.number, self._value_bytes)),
            }
            for load in self.partitions
            for ack in load.acks
            if ack.offset is not None
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return len(lines)

    def gaps_s(self) -> dict[int, float]:
        """Return the longest time between two acknowledgements, by partition."""
        return {load.partition: load.longest_gap_s for load in self.partitions}

    def print_gaps(self, title: str) -> None:
        gaps = " ".join(f"{number}:{gap:.2f}" for number, gap in self.gaps_s().items())
        print(f"\n{title}: {self.acked} acknowledged; longest gap in s per partition: {gaps}")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for load in self.partitions:
                    self._feed(load)
                time.sleep(self._pause_s)
        except BaseException as e:
            self._crash = e
            raise

    def _feed(self, load: PartitionLoad) -> None:
        load.producer.poll(0)
        while load.waiting < self._in_flight:
            number = load.sent
            load.producer.produce(
                self._topic,
                value=_value(number, self._value_bytes),
                partition=load.partition,
                on_delivery=lambda error, message, n=number: load.on_delivery(n, error, message),
            )
            load.sent += 1
            load.waiting += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Results of reading everything back; every list has one sentence per finding."""

    records_read: int
    lost: list[str]
    doubled: list[str]
    out_of_order: list[str]

    @property
    def findings(self) -> list[str]:
        return self.lost + self.doubled + self.out_of_order


def judge(bootstrap: str, topic: str, load: Load, *, idempotent: bool = True) -> Verdict:
    """Read all of ``topic`` and compare it with the acknowledgements of ``load``.

    :param idempotent: whether repeated or reordered values are findings."""
    lost: list[str] = []
    doubled: list[str] = []
    out_of_order: list[str] = []
    total = 0
    for part in load.partitions:
        name = f"{topic}-{part.partition}"
        found = {
            offset: int(value[:20]) for offset, value in read(bootstrap, topic, part.partition)
        }
        total += len(found)
        numbers = set(found.values())
        lost += [
            f"{name}: number {ack.number} was acknowledged and is nowhere"
            for ack in part.acks
            if ack.offset is None and ack.number not in numbers
        ]
        lost += [
            f"{name}: number {ack.number} was acknowledged at offset {ack.offset}, "
            f"which holds {found.get(ack.offset, 'nothing')}"
            for ack in part.acks
            if ack.offset is not None and found.get(ack.offset) != ack.number
        ]
        last = -1
        seen: set[int] = set()
        for offset, number in sorted(found.items()) if idempotent else ():
            if number in seen:
                doubled.append(f"{name}: number {number} is there again at offset {offset}")
            elif number < last:
                out_of_order.append(f"{name}: {number} follows {last} at offset {offset}")
            seen.add(number)
            last = max(last, number)
    return Verdict(records_read=total, lost=lost, doubled=doubled, out_of_order=out_of_order)


def read(
    bootstrap: str,
    topic: str,
    partition: int,
    settings: Mapping[str, object] | None = None,
    *,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and values of one partition, from its first record to its current end.

    :raises AssertionError: if the end is not reached in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            # librdkafka requires a group id; no offset is ever committed under it.
            "group.id": "checker",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            **(settings or {}),
        },
        logger=_QUIET,
    )
    try:
        deadline = time.monotonic() + timeout_s
        first, end = _watermarks(consumer, TopicPartition(topic, partition), deadline)
        if first == end:
            return
        consumer.assign([TopicPartition(topic, partition, first)])
        offset = first
        while offset < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: read {offset} of {end}"
            for message in consumer.consume(num_messages=10_000, timeout=0.2):
                error = message.error()
                if error is not None:
                    # With a group id, librdkafka looks for a coordinator, and a cluster without
                    # groups has none
                    # (COORDINATOR_NOT_AVAILABLE).
                    assert error.retriable(), error.str()
                    continue
                at, value = message.offset(), message.value()
                assert at is not None and value is not None, message
                offset = at + 1
                yield at, value
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """Return the first offset and the end offset of a partition.

    librdkafka sends one request to one leader. It raises the error of a leader that has just
    changed, and OFFSET_NOT_AVAILABLE, which it does not call retriable, of a new leader whose high
    watermark is not known yet (KIP-207).
    """
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=READ_TIMEOUT_S)
        except KafkaException as problem:
            error = problem.args[0]
            is_new_leader = error.retriable() or error.code() == KafkaError.OFFSET_NOT_AVAILABLE
            if not is_new_leader or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _value(number: int, size_bytes: int) -> bytes:
    return b"%020d" % number + b"." * (size_bytes - 20)


class _Quiet:
    """Ignores librdkafka's log lines; broken connections are expected in these tests."""

    def log(self, *_: object, **__: object) -> None:
        return


_QUIET: Final = _Quiet()
