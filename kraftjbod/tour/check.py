"""The proof: reads a topic from its beginning and compares it with what was acknowledged.

Every acknowledged record must be there once, unchanged, in order, and at the offset that the
acknowledgement promised. Records in doubt (sent, never answered) may be there or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.cluster_admin import LATEST, list_offsets
from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.cli.consumer import Consumer
from kraftjbod.core.errors import RequestTimedOutError
from kraftjbod.protocol.records import Record
from kraftjbod.tour.workload import PartitionLoad

_POLL_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is wrong with one partition, in records; all zero is the proof."""

    partition: int
    acknowledged: int
    found: int
    lost: int
    twice: int
    out_of_order: int
    changed: int
    misplaced: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.twice or self.out_of_order or self.changed or self.misplaced)


class PartitionCheck:
    """Compares one partition, record by record, as they arrive."""

    def __init__(self, load: PartitionLoad) -> None:
        self._load = load
        sent = load.acked + load.in_doubt
        self._index_of = {load.stream.key(index): index for index in range(sent)}
        self._promised: list[int] = []
        for ack in load.acks:
            self._promised.extend(range(ack.offset, ack.offset + ack.count))
        self._seen = bytearray(sent)
        self._last = -1
        self._found = self._twice = self._out_of_order = self._changed = self._misplaced = 0

    def feed(self, record: Record) -> None:
        self._found += 1
        index = self._index_of.get(record.key or b"")
        if index is None or record.value != self._load.stream.value(index):
            self._changed += 1
            return
        self._twice += self._seen[index]
        self._seen[index] = 1
        self._out_of_order += index < self._last
        self._last = index
        if index < self._load.acked:
            self._misplaced += record.offset != self._promised[index]

    def findings(self) -> Findings:
        return Findings(
            partition=self._load.partition,
            acknowledged=self._load.acked,
            found=self._found,
            lost=self._seen.count(0, 0, self._load.acked),
            twice=self._twice,
            out_of_order=self._out_of_order,
            changed=self._changed,
            misplaced=self._misplaced,
        )


async def read_back(
    client: ClusterClient,
    topic: str,
    loads: Iterable[PartitionLoad],
    advance: Callable[[int], None],
) -> list[Findings]:
    """Read ``topic`` to its end; ``advance`` is told how many records came.

    :raises RequestTimedOutError: if nothing arrives for a long time.
    """
    checks = {load.partition: PartitionCheck(load) for load in loads}
    await client.retry(lambda: client.refresh_metadata([topic]))
    ends = await client.retry(lambda: list_offsets(client, topic, checks, LATEST), topics=[topic])
    await _read_until(client, topic, ends, checks, advance)
    return [check.findings() for check in checks.values()]


async def _read_until(
    client: ClusterClient,
    topic: str,
    ends: Mapping[int, int],
    checks: Mapping[int, PartitionCheck],
    advance: Callable[[int], None],
) -> None:
    consumer = Consumer(client, topic, {partition: 0 for partition, end in ends.items() if end})
    try:
        while consumer.positions:
            arrived = await consumer.poll(_POLL_MS)
            if not arrived:
                raise RequestTimedOutError(f"no record of {topic} came for {_POLL_MS} ms")
            for fetched in arrived:
                count = 0
                for _, record in fetched:
                    checks[fetched.partition].feed(record)
                    count += 1
                advance(count)
                if fetched.next_offset >= ends[fetched.partition]:
                    consumer.stop_reading(fetched.partition)
    finally:
        await consumer.close()
