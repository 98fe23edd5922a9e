"""WIRE. A topic whose replicas are all on the first disk of their broker, as input of the planner.

The records are the files of Python's standard library, repeated up to a size.
"""

from __future__ import annotations

import asyncio
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer, now_ms
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.protocol.records import Record

TOPIC: Final = "python-files"
PARTITIONS: Final = 12
REPLICATION_FACTOR: Final = 3
SIZE_BYTES: Final = 60 * 1000 * 1000
_BATCH_BYTES: Final = 400_000
_MAX_FILE_BYTES: Final = 300_000
_TIMEOUT_S: Final = 60.0


async def make_uneven_topic(
    client: ClusterClient, cluster: ClusterProcesses, size_bytes: int = SIZE_BYTES
) -> int:
    """Create the topic on first disks only, fill it, and return the number of records.

    ``size_bytes`` is the size of the values of one replica of the whole topic.

    :raises OperatingError: the cluster refused a request, or did not answer in a minute.
    """
    await _ask_for_first_disks(client, cluster)
    await create_topic(
        client, TOPIC, partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR, configs={}
    )
    await wait_in_sync(client, TOPIC, timeout_s=_TIMEOUT_S)
    producer = Producer(client, TOPIC)
    sizes = await asyncio.gather(
        *(_fill(producer, partition, size_bytes // PARTITIONS) for partition in range(PARTITIONS))
    )
    await wait_in_sync(client, TOPIC, timeout_s=_TIMEOUT_S)
    return sum(sizes)


async def _ask_for_first_disks(client: ClusterClient, cluster: ClusterProcesses) -> None:
    """Request the first disk before the replicas exist: the broker remembers the path (KIP-113)."""
    partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    for broker_id, broker in cluster.brokers.items():
        first = str(broker.files.log_dirs[0])
        refusals = await alter_replica_log_dirs(client, broker_id, {first: partitions})
        for refusal in refusals.values():
            if refusal.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                raise refusal


async def _fill(producer: Producer, partition: int, size_bytes: int) -> int:
    """Produce at least ``size_bytes`` of values and return the number of records."""
    sent_bytes, count, batch, batch_bytes = 0, 0, [], 0
    for record in _files(partition):
        batch.append(record)
        batch_bytes += len(record.value or b"")
        if batch_bytes >= _BATCH_BYTES:
            await producer.send(partition, batch)
            count += len(batch)
            sent_bytes += batch_bytes
            batch, batch_bytes = [], 0
            if sent_bytes >= size_bytes:
                break
    return count


def _files(partition: int) -> Iterator[Record]:
    """Yield every ``PARTITIONS``-th file of the library, endlessly."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if "-packages" not in path.as_posix()]
    for path in itertools.cycle(paths[partition::PARTITIONS]):
        text = path.read_bytes()[:_MAX_FILE_BYTES]
        name = path.relative_to(root).as_posix()
        yield Record(key=name.encode(), value=text, timestamp_ms=now_ms())
