"""``reconciled``: the next assignment of a member on the way to its target."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.groups.consumer.reconciliation import Destination, reconciled
from kraftjbod.broker.groups.records.consumer_group_records import CurrentAssignment, MemberState
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicIdPartition
from tests.unit.broker.groups.consumer.consumer_scene import topic_id

TOPIC = topic_id(1)
P = [TopicIdPartition(TOPIC, number) for number in range(4)]
S = MemberState


def has(*parts: int, epoch: int = 1, state: S = S.STABLE, revoking: Any = ()) -> CurrentAssignment:
    return CurrentAssignment(
        epoch=epoch,
        previous_epoch=epoch,
        state=state,
        assigned=dict.fromkeys([P[n] for n in parts], 1),
        revoking=dict.fromkeys([P[n] for n in revoking], 1),
    )


def step(
    current: CurrentAssignment, *target: int, owned: Any = None, held: Any = ()
) -> CurrentAssignment:
    return reconciled(
        current,
        Destination(
            member_id="m",
            target=frozenset(P[n] for n in target),
            target_epoch=2,
            topics={TOPIC},
            holders={P[n]: "other" for n in held} | dict.fromkeys(current.revoking, "m"),
            owned=None if owned is None else frozenset(P[n] for n in owned),
        ),
    )


@pytest.mark.parametrize(
    ("current", "target", "more", "epoch", "state", "assigned"),
    [
        (has(0, 1), (0, 1), {}, 2, S.STABLE, (0, 1)),
        (has(0, 1), (0,), {}, 1, S.UNREVOKED_PARTITIONS, (0,)),
        (has(0, 1), (0, 2), {"owned": (0, 1)}, 1, S.UNREVOKED_PARTITIONS, (0,)),
        (has(0, 1), (0, 2), {"owned": (0,)}, 2, S.STABLE, (0, 2)),
        (has(0), (0, 2, 3), {"held": (3,)}, 2, S.UNRELEASED_PARTITIONS, (0, 2)),
        (has(0), (0, 3), {"held": (3,)}, 2, S.UNRELEASED_PARTITIONS, (0,)),
        (has(0, state=S.UNRELEASED_PARTITIONS), (0, 3), {}, 2, S.STABLE, (0, 3)),
        (
            has(0, state=S.UNREVOKED_PARTITIONS, revoking=[1]),
            (0,),
            {},
            1,
            S.UNREVOKED_PARTITIONS,
            (0,),
        ),
        (
            has(0, state=S.UNREVOKED_PARTITIONS, revoking=[1]),
            (0, 1),
            {"owned": (0,)},
            2,
            S.STABLE,
            (0, 1),
        ),
    ],
)
def test_reconciled_revokes_before_it_assigns(
    current: Any, target: Any, more: Any, epoch: int, state: S, assigned: Any
) -> None:
    after = step(current, *target, **more)
    assert (after.epoch, after.state, after.assigned.keys()) == (
        epoch,
        state,
        {P[n] for n in assigned},
    )
    revoked = current.assigned.keys() - after.assigned.keys()
    assert state is not S.UNREVOKED_PARTITIONS or revoked <= after.revoking.keys()


def test_reconciled_member_in_an_unknown_state_is_fenced_until_it_rejoins() -> None:
    unknown = has(0, state=S.UNKNOWN)
    with pytest.raises(OperatingError) as refused:
        step(unknown, 0)
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert step(unknown, 0, owned=()).state is S.STABLE
