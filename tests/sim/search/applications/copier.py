"""``Copier``: copies a topic into each partition of another, exactly once.

The copies and the consumed offsets are one transaction; a successor starts at the committed
offsets. Fenced copiers continue from their own positions, and must copy nothing. Offsets of an open
transaction must not be committed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.cli.clients.consumer import Consumer
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.messages import OffsetFetchRequest
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.committed_reader import CommittedReader
from tests.sim.search.applications.reigns import Reign, Reigns
from tests.sim.search.applications.transactional_producer import (
    GROUP,
    Coordinators,
)

TOPIC: Final = "copies"
PARTITIONS: Final = 2
_GROUP: Final = "copier"
_POLL_MS: Final = 700
#: Pause between two transactions, so that faults strike in each state.
_PAUSE_S: Final = 0.5
_GIVEN_UP: Final = 0.15
#: Share of the transactions that write all their partitions at once.
_TOGETHER: Final = 0.7
#: Share of the transactions during which the committed offsets are fetched.
_CHECKED: Final = 0.7
_FIND_MS: Final = 20_000
#: Version of OffsetFetch with several groups in one request, and topics by name.
_GROUPS_BY_NAME: Final = 9


class Copier:
    """:param source: its topic and partitions, of which no record is ever removed.
    :param end_of: returns the offset after the last record of a partition to be copied.
    """

    topics: Mapping[str, int] = MappingProxyType({TOPIC: PARTITIONS})

    def __init__(
        self,
        rng: random.Random,
        around: Surroundings,
        source: tuple[str, int],
        end_of: Callable[[int], int],
    ) -> None:
        self._rng = rng
        self._around = around
        self._source, self._source_partitions = source
        self._end_of = end_of
        self._reigns = Reigns("copier", rng, around, self._rule)
        self._reader = CommittedReader(
            around.client("copies-reader"), TOPIC, PARTITIONS, saw=self._saw
        )
        #: By partition of the copies and of the source: the next offset of the source.
        self._copied: Counter[tuple[int, int]] = Counter()
        #: By partition of the source: the largest offset that a transaction may have committed.
        self._committable: Counter[int] = Counter()
        self._copied_ms = -1
        self._pause_s = _PAUSE_S

    def start(self) -> None:
        self._reigns.start()
        self._around.begin(self._reader.run(), "copies-reader")

    def silent_since(self, since_ms: int) -> list[str]:
        is_silent = self._copied_ms <= since_ms
        return [f"nothing is copied since {since_ms / 1000:.3f} s"] if is_silent else []

    async def stop(self) -> None:
        """Copy the rest without pauses: a transaction may take a single record."""
        self._pause_s = 0.0

    def unsettled(self) -> list[str]:
        missing = [
            f"{TOPIC}-{here} has {self._source}-{partition} up to {self._copied[here, partition]}"
            for here in range(PARTITIONS)
            for partition in range(self._source_partitions)
            if self._copied[here, partition] < self._end_of(partition)
        ]
        if not missing:
            self._reigns.is_stopping = True
        return missing or self._reader.unread()

    async def judge(self) -> list[str]:
        await self._reigns.stop()
        return []

    async def close(self) -> None:
        await self._around.close()

    def _saw(self, here: int, value: bytes) -> None:
        """Check that the records of the source are copied in order."""
        partition, offset = map(int, value.split())
        wanted = self._copied[here, partition]
        self._copied[here, partition] = offset + 1
        self._copied_ms = self._around.now_ms()
        if offset != wanted:
            self._around.found(
                f"{TOPIC}-{here} has a copy of {self._source}-{partition} offset {offset} where "
                f"that of {wanted} belongs"
            )

    # --- copying ---------------------------------------------------------------------------------

    async def _rule(self, _reigns: Reigns, reign: Reign) -> None:
        client = self._around.client(f"{reign.name}-reader")
        await client.retry(lambda: client.refresh_metadata([self._source]))
        positions = await client.retry(lambda: self._committed(client), timeout_ms=_FIND_MS)
        reader = Consumer(client, self._source, positions, read_committed=True)
        try:
            while not self._reigns.is_stopping and await self._copy(reign, client, reader):
                pass
        finally:
            await reader.close()

    async def _copy(self, reign: Reign, client: ClusterClient, reader: Consumer) -> bool:
        """Copy the fetched records; False if it aborted the transaction: they are read again."""
        values: list[bytes] = []
        ends: dict[TopicPartition, int] = {}
        for fetched in await reader.poll(_POLL_MS):
            tp = TopicPartition(self._source, fetched.partition)
            values += [b"%d %d" % (tp.partition, record.offset) for _, record in fetched]
            ends[tp] = fetched.next_offset
        if not values:
            return True
        producer, timestamp_ms = reign.producer, WORLD_BEGAN_MS + self._around.now_ms()
        copies = {TopicPartition(TOPIC, partition): values for partition in range(PARTITIONS)}
        if self._rng.random() < _TOGETHER:
            await producer.send(copies, timestamp_ms)
        else:
            for tp in copies:
                await producer.send({tp: values}, timestamp_ms)
        await producer.send_offsets(_GROUP, ends)
        if self._rng.random() < _CHECKED:
            await self._judge_open_transaction(client)
        is_given_up = self._rng.random() < _GIVEN_UP
        if not is_given_up:
            for tp, offset in ends.items():
                self._committable[tp.partition] = max(self._committable[tp.partition], offset)
        await producer.end(committed=not is_given_up)
        await asyncio.sleep(self._pause_s)
        return not is_given_up

    async def _judge_open_transaction(self, client: ClusterClient) -> None:
        """Check that the group's committed offsets are those of ended transactions."""
        try:
            committed = await self._committed(client, is_stable=False)
        except OperatingError:
            return  # A fault delays the answer; later transactions are checked as well.
        for partition, offset in committed.items():
            if offset > self._committable[partition]:
                self._around.found(
                    f"offset {offset} of {self._source}-{partition} is committed in an open "
                    f"transaction, after {self._committable[partition]}"
                )

    async def _committed(self, client: ClusterClient, *, is_stable: bool = True) -> dict[int, int]:
        """Return the group's committed offsets.

        :param is_stable: only once no transaction that changes them is open.
        """
        kind = OffsetFetchRequest
        partitions = range(self._source_partitions)
        topic = kind.OffsetFetchRequestTopics(name=self._source, partition_indexes=list(partitions))
        request = kind(
            groups=[kind.OffsetFetchRequestGroup(group_id=_GROUP, topics=[topic])],
            require_stable=is_stable,
        )
        response = await Coordinators(client).ask(
            GROUP, _GROUP, request, max_version=_GROUPS_BY_NAME
        )
        (group,) = response.groups
        parts = [part for topic in group.topics for part in topic.partitions]
        for code in (group.error_code, *(part.error_code for part in parts)):
            if code != ErrorCode.NONE:
                raise kafka_error(code, f"offsets of group {_GROUP}")
        found = {part.partition_index: max(0, part.committed_offset) for part in parts}
        return {partition: found.get(partition, 0) for partition in partitions}
