"""A broker that coordinates groups and leads ``__group_telemetry``, and its samples."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.loop.timing import Deadline
from kraftjbod.protocol.records import read_records
from kraftjbod.protocol.telemetry.group_telemetry import TOPIC
from tests.unit.broker.broker_rig import BrokerRig, fetch, only, partition, topic
from tests.unit.broker.groups.group_rig import coordinator
from tests.unit.broker.scripted_controller import RealClock

ID = TopicId(b"g" * 16)


async def round_of(rig: BrokerRig, ms: int = 20_000) -> list[dict[str, Any]]:
    """Run one round and return the samples that it sent."""
    before = end_of(rig)
    await rig.parts.group_telemetry.round(Deadline.after(RealClock().now_ms(), ms), whole=True)
    found: list[dict[str, Any]] = []
    while before + len(found) < end_of(rig):
        asked = fetch(before + len(found), tp=TopicPartition(TOPIC, 0))
        data = only(await rig.ask(asked, 12)).records
        found += [json.loads(record.value or b"") for record in read_records(data)]
    return found


def end_of(rig: BrokerRig) -> int:
    handle = rig.logs.get(TopicPartition(TOPIC, 0))
    return 0 if handle is None else int(handle.log_end_offset)


def dropped(rig: BrokerRig) -> float:
    return rig.around.metrics.snapshot().get("GroupTelemetryDroppedTotal", 0)


@contextlib.asynccontextmanager
async def reporting(**overrides: Any) -> AsyncIterator[BrokerRig]:
    async with coordinator(**overrides) as rig:
        await rig.follow(topic(TOPIC, ID), partition(topic_id=ID))
        yield rig
