"""Which groups have a place in a round of group telemetry."""

from __future__ import annotations

from tests.unit.broker.groups.group_rig import commit
from tests.unit.broker.telemetry.group_telemetry_rig import dropped, reporting, round_of


async def test_groups_without_room_come_first_in_the_next_round() -> None:
    async with reporting(group_telemetry_max_samples="2") as rig:
        for group_id in ("a", "b", "c"):
            request = commit(0)
            request.group_id = group_id
            await rig.ask(request, 9)
        rounds = [[one["group_id"] for one in await round_of(rig)] for _ in range(3)]
        assert rounds == [["a", "b"], ["c", "a"], ["b", "c"]]
        assert dropped(rig) == 3
