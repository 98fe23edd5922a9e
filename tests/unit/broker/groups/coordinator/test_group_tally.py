"""``GroupTally``: numbers of groups by kind and state."""

from __future__ import annotations

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_tally import GroupTally, Standing


def test_group_tally_counts_a_group_with_its_last_standing_only() -> None:
    tally = GroupTally()
    tally.put("g", Standing(is_consumer=False, state=GroupState.STABLE, members=3))
    tally.put("h", Standing(is_consumer=True, state=GroupState.STABLE, members=2))
    assert (len(tally), tally.members, tally.group_ids()) == (2, 5, ["g", "h"])
    tally.put("g", Standing(is_consumer=True, state=GroupState.STABLE, members=1))
    assert (len(tally), tally.members) == (2, 3)
    assert tally.count(is_consumer=False, state=GroupState.STABLE) == 0
    assert tally.count(is_consumer=True, state=GroupState.STABLE) == 2
    for _ in range(2):
        tally.put("g", None)
    assert (len(tally), tally.members, "g" in tally, "h" in tally) == (1, 2, False, True)
    assert tally.count(is_consumer=True, state=GroupState.STABLE) == 1
