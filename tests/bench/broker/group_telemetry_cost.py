"""What group telemetry costs brokers, at its default interval and at that of ``kraftjbod-local``.

Two clusters of three brokers run side by side, one with group telemetry and one without, so that
other load of the machine affects both. In each, 100 groups have offsets on ten partitions. The
groups have no members, whose cost would be the same in both clusters.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Final

import uvloop

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import OffsetCommitRequest
from tests.bench.broker.groups import GROUPS, Coordinators
from tests.bench.broker.telemetry_cost import idle
from tests.bench.figures import Report, running_cluster
from tests.integration.cluster import Cluster

_BROKERS: Final = 3
_PARTITIONS: Final = 10
_INTERVALS_MS: Final = (60_000, 2_000)
_SETTLE_S: Final = 15.0
_TIMEOUT_MS: Final = 60_000
_RETRY_S: Final = 0.2


def on_and_off(report: Report) -> None:
    for interval_ms in _INTERVALS_MS:
        with ExitStack() as stack:
            clusters = {
                is_on: stack.enter_context(
                    running_cluster(
                        brokers=_BROKERS,
                        dirs=1,
                        config={
                            "storage.telemetry.enable": "false",
                            "group.telemetry.enable": str(is_on).lower(),
                            "group.telemetry.interval.ms": str(interval_ms),
                        },
                    )
                )
                for is_on in (True, False)
            }
            for local in clusters.values():
                Cluster(local).create_topic(
                    "groups", partitions=_PARTITIONS, replication_factor=_BROKERS
                )
                uvloop.run(_commit_all(local.bootstrap_servers))
            time.sleep(_SETTLE_S)
            name = f"{GROUPS} groups of {_PARTITIONS} partitions, every {interval_ms // 1000} s"
            idle(report, clusters, name, "GroupTelemetrySentTotal")


async def _commit_all(bootstrap: str) -> None:
    """Commit an offset of each group on each partition."""
    coordinators = Coordinators(bootstrap)
    kinds = OffsetCommitRequest
    parts = [
        kinds.OffsetCommitRequestPartition(partition_index=index, committed_offset=0)
        for index in range(_PARTITIONS)
    ]
    topics = [kinds.OffsetCommitRequestTopic(name="groups", partitions=parts)]
    try:
        for number in range(GROUPS):
            group = f"group-{number}"
            request = kinds(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
            codes = {int(ErrorCode.NOT_COORDINATOR)}
            while codes != {ErrorCode.NONE}:
                connection = await coordinators.connected(group)
                answer = await connection.request(request, timeout_ms=_TIMEOUT_MS, version=9)
                codes = {part.error_code for part in answer.topics[0].partitions}
                if codes != {ErrorCode.NONE}:
                    await asyncio.sleep(_RETRY_S)
    finally:
        coordinators.close()
