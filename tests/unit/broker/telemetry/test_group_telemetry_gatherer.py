"""``GroupTelemetryGatherer``: samples of the lag of groups, and their limit per round."""

from __future__ import annotations

from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TOPIC_ID, only, produce
from tests.unit.broker.groups.group_rig import commit, committing, enter
from tests.unit.broker.telemetry.group_telemetry_rig import dropped, reporting, round_of


async def test_group_telemetry_sample_reports_the_lag() -> None:
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


async def test_groups_omitted_by_the_sample_limit_come_first_in_the_next_round() -> None:
    async with reporting(group_telemetry_max_samples="2") as rig:
        for group_id in ("a", "b", "c"):
            request = commit(0)
            request.group_id = group_id
            await rig.ask(request, 9)
        rounds = [[one["group_id"] for one in await round_of(rig)] for _ in range(3)]
        assert rounds == [["a", "b"], ["c", "a"], ["b", "c"]]
        assert dropped(rig) == 3
