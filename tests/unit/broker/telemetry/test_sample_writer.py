"""Where samples go, and how they are packed."""

from __future__ import annotations

from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.timing import Deadline
from kraftjbod.protocol.record_batch import Compression, read_header
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.telemetry.group_telemetry import TOPIC
from tests.unit.broker.broker_rig import brokers, fetch, only, partition, topic
from tests.unit.broker.scripted_controller import RealClock
from tests.unit.broker.telemetry.group_telemetry_rig import ID


async def test_all_samples_of_one_broker_are_packed_into_one_partition() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), *(partition(i, topic_id=ID) for i in range(3)))
        writer = rig.parts.group_telemetry._writer
        deadline = Deadline.after(RealClock().now_ms(), 20_000)
        for _ in range(2):
            await writer.send([Record(key=b"k", value=b"v", timestamp_ms=1)] * 9, deadline)
        ends = [rig.logs.get(TopicPartition(TOPIC, index)).log_end_offset for index in range(3)]
        assert ends == [0, 18, 0]
        data = only(await rig.ask(fetch(tp=TopicPartition(TOPIC, 1)), 12)).records
        assert read_header(data).compression == Compression.GZIP
