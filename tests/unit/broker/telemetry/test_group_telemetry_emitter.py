"""Rounds of group telemetry: what is sent, what is dropped, and what is logged of that."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TOPIC_ID, only, partition, produce
from tests.unit.broker.gates import until
from tests.unit.broker.groups.group_rig import committing, enter
from tests.unit.broker.impaired_dirs import answer, stall
from tests.unit.broker.telemetry.group_telemetry_rig import (
    ID,
    dropped,
    end_of,
    reporting,
    round_of,
)


async def test_how_far_a_group_is_behind() -> None:
    async with reporting(broker_rack="r9") as rig:
        assert await round_of(rig) == []
        assert only(await rig.ask(produce(batch(5)), 9)).error_code == 0
        member_id, generation = await enter(rig)
        assert await committing(rig, 2, member_id, generation) == 0
        (sample,) = await round_of(rig)
        wanted = {
            **{"schema": 1, "kind": "lag", "broker_id": 1, "rack": "r9"},
            **{"group_id": "g", "group_type": "classic", "state": "Stable", "members": 1},
            **{"topic": "t", "topic_id": str(TOPIC_ID), "partition": 0},
            **{"committed_offset": 2, "log_end_offset": 5, "lag": 3},
        }
        assert wanted.items() <= sample.items()
        assert 0 < sample["committed_ms"] <= sample["time_ms"]
        assert await committing(rig, 5, member_id, generation) == 0
        assert [one["lag"] for one in await round_of(rig)] == [0]
        assert dropped(rig) == 0


async def test_what_nobody_takes_in_time_is_dropped_and_a_trouble_is_reported_once() -> None:
    async with reporting() as rig:
        assert await committing(rig, 0) == 0
        with capture_logs() as lines:
            await rig.follow(partition(topic_id=ID, leader=-1, epoch=1))
            for _ in range(2):
                assert await round_of(rig, ms=40) == []
            await rig.follow(partition(topic_id=ID, epoch=2))
            assert len(await round_of(rig)) == 1
        found = [line["event"] for line in lines if line["event"].startswith("group_telemetry")]
        assert found == ["group_telemetry_dropped", "group_telemetry_sent_again"]
        assert dropped(rig) == 2


async def test_a_bug_in_a_round_is_reported_and_costs_that_round_only(monkeypatch: Any) -> None:
    async with reporting(group_telemetry_interval_ms="100") as rig:
        assert await committing(rig, 0) == 0
        emitter = rig.parts.group_telemetry
        ends = emitter._ends.find
        monkeypatch.setattr(emitter._ends, "find", lambda _: 1 / 0)
        with capture_logs() as lines:
            rig.tasks.start(emitter.run(), "telemetry")
            await until(lambda: lines)
            monkeypatch.setattr(emitter._ends, "find", ends)
            await until(lambda: end_of(rig))
        assert lines[0]["event"] == "group_telemetry_round_failed"


async def test_a_hung_disk_under_the_topic_holds_nothing_else_up() -> None:
    async with reporting() as rig:
        assert await committing(rig, 0) == 0
        stall(rig.dirs[0])
        assert await round_of(rig, ms=40) == []
        assert dropped(rig) == 1
        await answer(rig.dirs[0])
