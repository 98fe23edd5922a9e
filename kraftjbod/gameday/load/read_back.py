"""LOOP. Reads a topic from the start of a load to its end, for the check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kraftjbod.cli.clients.cluster_admin import LATEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.consumer import Consumer
from kraftjbod.core.errors import RequestTimedOutError
from kraftjbod.gameday.load.acknowledgements import Acknowledgements
from kraftjbod.gameday.load.check import Findings, PartitionCheck

_POLL_MS: Final = 30_000


async def end_offsets(
    client: ClusterClient, topic: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return the high watermark of each partition: the offset after the last record that a consumer
    sees."""
    await client.retry(lambda: client.refresh_metadata([topic]))
    wanted = list(partitions)
    return await client.retry(lambda: list_offsets(client, topic, wanted, LATEST), topics=[topic])


async def read_back(
    client: ClusterClient,
    topic: str,
    loads: Iterable[Acknowledgements],
    advance: Callable[[int], None],
    *,
    starts: Mapping[int, int] | None = None,
) -> list[Findings]:
    """Read ``topic`` up to its present end and check it.

    :param advance: called with the number of records of each partition in a fetch.
    :param starts: first offset by partition; by default 0.
    :raises RequestTimedOutError: no record arrives for 30 s.
    """
    checks = {load.partition: PartitionCheck(load) for load in loads}
    ends = await end_offsets(client, topic, checks)
    begin = {partition: (starts or {}).get(partition, 0) for partition in ends}
    ahead = {
        partition: begin[partition] for partition in ends if ends[partition] > begin[partition]
    }
    await _read_until(client, topic, ahead, ends, checks, advance)
    return [check.findings() for check in checks.values()]


async def _read_until(
    client: ClusterClient,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    checks: Mapping[int, PartitionCheck],
    advance: Callable[[int], None],
) -> None:
    consumer = Consumer(client, topic, starts)
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
