"""``GroupChanges`` reverts decisions; test_consumer_group_events.py covers all other behaviour."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.consumer.consumer_group_state import ConsumerGroupState, GroupChanges
from kraftjbod.broker.groups.records.consumer_group_records import (
    CurrentAssignment,
    CurrentFact,
    EpochFact,
    GroupEpoch,
    MemberFact,
    MemberState,
    PartitionMetadataFact,
    TargetEpoch,
    TargetEpochFact,
)
from tests.unit.broker.groups.consumer.consumer_scene import ConsumerScene, two


def test_group_changes_of_a_whole_group_can_be_reverted_or_removed() -> None:
    scene, _ = two()
    state = ConsumerGroupState("g")
    changes = GroupChanges(state)
    changes.put(*scene.group.state.facts())
    assert state.holders == scene.group.state.holders and state.names == scene.group.state.names
    changes.take_back()
    assert not state.is_written and not state.holders and not state.names
    changes.put(*scene.group.state.facts())
    changes.put(*state.end())
    assert not state.is_written and not state.holders


def test_partition_metadata_of_older_kafka_is_removed_with_the_next_epoch() -> None:
    scene = ConsumerScene()
    scene.group.load(PartitionMetadataFact("g", is_there=True))
    scene.join("a")
    at = scene.log.index(PartitionMetadataFact("g", is_there=False))
    assert isinstance(scene.log[at + 1], EpochFact)


@pytest.mark.parametrize("seed", range(4))
def test_phase_equals_that_of_a_recount_of_members_after_any_facts(seed: int) -> None:
    """Facts of a member may come before or after those of its assignment, and may be undone."""
    scene, _ = two()
    member = scene.group.state.members["a"]
    dice, state, seen = random.Random(seed), ConsumerGroupState("g"), set()
    changes = GroupChanges(state)
    for _ in range(2_000):
        member_id, epoch = dice.choice("ab"), dice.randrange(1, 3)
        current = CurrentAssignment(epoch=epoch, previous_epoch=0, assigned={}, revoking={})
        state_of_member = dice.choice((MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS))
        facts = (
            MemberFact("g", member_id, dice.choice((member, None))),
            MemberFact("g", member_id, member),
            CurrentFact("g", member_id, replace(current, state=state_of_member)),
            CurrentFact("g", member_id, None),
            EpochFact("g", GroupEpoch(epoch=epoch)),
            TargetEpochFact("g", TargetEpoch(epoch=epoch)),
        )
        changes.put(dice.choice(facts))
        if dice.random() < 0.1:
            changes.take_back(dice.randrange(len(changes)))
        seen.add(state.phase)
        assert state.phase is recounted_phase(state)
    assert len(seen) == 4


def recounted_phase(state: ConsumerGroupState) -> GroupState:
    """Return the state of a consumer group, found out member by member."""
    if not state.members:
        return GroupState.EMPTY
    if state.epoch > state.assignment_epoch:
        return GroupState.ASSIGNING
    at = {(state.current(one).state, state.current(one).epoch) for one in state.members}
    is_stable = at == {(MemberState.STABLE, state.assignment_epoch)}
    return GroupState.STABLE if is_stable else GroupState.RECONCILING
