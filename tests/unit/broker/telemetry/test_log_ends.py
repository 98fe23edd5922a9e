"""``LogEnds``: log end offsets of other leaders, for the lag of groups."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.telemetry.group_telemetry import TOPIC
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import brokers, only, partition, produce, topic
from tests.unit.broker.groups.group_rig import QUICK, committing, lead, loaded
from tests.unit.broker.telemetry.group_telemetry_rig import ID, round_of


async def test_log_ends_of_an_unreachable_leader_leave_only_its_lags_unknown() -> None:
    async with brokers(2, **QUICK) as (rig, other):
        await lead(rig, 0)
        for one in (rig, other):
            await one.follow(
                topic(),
                partition(replicas=(1,)),
                partition(1, replicas=(2,), leader=2),
                topic(TOPIC, ID),
                partition(topic_id=ID),
            )
        await loaded(rig)
        request = produce(batch(4), tp=TopicPartition("t", 1))
        assert only(await other.ask(request, 9)).error_code == 0
        for index in (0, 1):
            assert await committing(rig, 0, index=index) == 0
        found = {one["partition"]: one["lag"] for one in await round_of(rig)}
        assert found == {0: 0, 1: 4}
        await other.listener.close(timeout_ms=1)
        with capture_logs() as lines:
            for _ in range(2):
                found = {one["partition"]: one["lag"] for one in await round_of(rig)}
                assert found == {0: 0, 1: None}
        assert [line["event"] for line in lines].count("log_ends_unknown") == 1
