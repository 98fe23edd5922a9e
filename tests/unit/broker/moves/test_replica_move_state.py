"""``ReplicaMoveState``: the transitions of a move, and how it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.moves.replica_move_state import (
    Action,
    AssignDirectory,
    AssignmentAccepted,
    Cancelled,
    CloseGateAndPromote,
    Copied,
    CopyOn,
    DropFuture,
    End,
    Event,
    MoveEnd,
    MovePhase,
    Promoted,
    ReplicaMoveState,
    ReportDirectory,
    SourceFailed,
    SourceStalled,
    SwapFailed,
    TargetFailed,
    TargetStalled,
    Unwanted,
)
from kraftjbod.core.errors import InvalidTransition
from kraftjbod.core.ids import DirectoryId, Uuid

A, B = DirectoryId(b"A" * 16), DirectoryId(b"B" * 16)
MOVE, OTHER_MOVE = Uuid(b"m" * 16), Uuid(b"o" * 16)
LAGGING, CAUGHT_UP = Copied(is_caught_up=False), Copied(is_caught_up=True)
ACCEPTED = AssignmentAccepted(move_id=MOVE)
REVERT = ReportDirectory(directory_id=A)


def machine(phase: MovePhase = MovePhase.COPYING) -> ReplicaMoveState:
    """A move in ``phase``."""
    m = ReplicaMoveState(move_id=MOVE, source=A, target=B)
    for event in (CAUGHT_UP, ACCEPTED, CAUGHT_UP, Promoted()):
        if m.phase is phase:
            break
        m.handle(event)
    assert m.phase is phase
    return m


def test_move_copies_then_requests_assignment_and_swaps_after_acceptance() -> None:
    m = machine()
    assert m.handle(LAGGING) == [CopyOn()]
    assert m.handle(CAUGHT_UP) == [AssignDirectory(directory_id=B, move_id=MOVE), CopyOn()]
    assert m.handle(CAUGHT_UP) == [CopyOn()] and m.phase is MovePhase.QUEUED
    assert m.handle(ACCEPTED) == [CopyOn()]
    assert m.handle(LAGGING) == [CopyOn()]
    assert m.handle(CAUGHT_UP) == [CloseGateAndPromote()]
    assert m.handle(Promoted()) == [End(how=MoveEnd.PROMOTED)] and m.is_over


def test_move_accepted_before_a_restart_does_not_assign_again() -> None:
    m = ReplicaMoveState(move_id=MOVE, source=A, target=B, is_accepted=True)
    assert m.handle(LAGGING) == [CopyOn()]
    assert m.handle(CAUGHT_UP) == [CloseGateAndPromote()]


_ENDS: dict[str, tuple[MovePhase, Event, list[Action]]] = {
    "cancelled while copying": (
        MovePhase.COPYING, Cancelled(), [DropFuture(), End(how=MoveEnd.CANCELLED)],
    ),
    "cancelled while queued": (
        MovePhase.QUEUED, Cancelled(), [REVERT, DropFuture(), End(how=MoveEnd.CANCELLED)],
    ),
    "cancelled after the controller accepted it": (
        MovePhase.ACCEPTED, Cancelled(), [REVERT, DropFuture(), End(how=MoveEnd.CANCELLED)],
    ),
    "cancelled too late": (MovePhase.SWAPPING, Cancelled(), []),
    "unwanted while copying": (
        MovePhase.COPYING, Unwanted(), [DropFuture(), End(how=MoveEnd.UNWANTED)],
    ),
    "unwanted while queued": (
        MovePhase.QUEUED, Unwanted(), [DropFuture(), End(how=MoveEnd.UNWANTED)],
    ),
    "unwanted while accepted": (
        MovePhase.ACCEPTED, Unwanted(), [DropFuture(), End(how=MoveEnd.UNWANTED)],
    ),
    "unwanted while swapping": (MovePhase.SWAPPING, Unwanted(), []),
    "source fails while copying": (
        MovePhase.COPYING, SourceFailed(), [End(how=MoveEnd.SOURCE_FAILED)],
    ),
    "source fails while queued": (
        MovePhase.QUEUED, SourceFailed(), [REVERT, End(how=MoveEnd.SOURCE_FAILED)],
    ),
    "source fails while accepted": (
        MovePhase.ACCEPTED, SourceFailed(), [REVERT, End(how=MoveEnd.SOURCE_FAILED)],
    ),
    "source fails while swapping": (
        MovePhase.SWAPPING, SourceFailed(), [REVERT, End(how=MoveEnd.SOURCE_FAILED)],
    ),
    "target fails while copying": (
        MovePhase.COPYING, TargetFailed(), [End(how=MoveEnd.TARGET_FAILED)],
    ),
    "target fails while queued": (
        MovePhase.QUEUED, TargetFailed(), [REVERT, End(how=MoveEnd.TARGET_FAILED)],
    ),
    "target fails while accepted": (
        MovePhase.ACCEPTED, TargetFailed(), [REVERT, End(how=MoveEnd.TARGET_FAILED)],
    ),
    "target fails while swapping": (
        MovePhase.SWAPPING, TargetFailed(), [REVERT, End(how=MoveEnd.TARGET_FAILED)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", _ENDS.values(), ids=_ENDS.keys())
def test_replica_move_early_end_reverts_a_requested_assignment_unless_the_replica_left(
    row: tuple[MovePhase, Event, list[Action]],
) -> None:
    phase, event, expected = row
    assert machine(phase).handle(event) == expected


def test_failed_swap_is_retried() -> None:
    m = machine(MovePhase.SWAPPING)
    assert m.handle(SwapFailed()) == [CopyOn()]
    assert m.handle(CAUGHT_UP) == [CloseGateAndPromote()]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Cancelled(), [REVERT, DropFuture(), End(how=MoveEnd.CANCELLED)]),
        (Unwanted(), [DropFuture(), End(how=MoveEnd.UNWANTED)]),
    ],
)
def test_replica_move_cancelled_or_unwanted_during_a_swap_ends_if_the_swap_fails(
    event: Event, expected: list[Action]
) -> None:
    m = machine(MovePhase.SWAPPING)
    m.handle(event)
    assert m.handle(SwapFailed()) == expected


def test_cancellation_during_a_swap_has_no_effect_if_the_swap_succeeds() -> None:
    m = machine(MovePhase.SWAPPING)
    m.handle(Cancelled())
    assert m.handle(Promoted()) == [End(how=MoveEnd.PROMOTED)]


def test_replica_removed_during_a_swap_is_assigned_to_no_directory() -> None:
    m = machine(MovePhase.SWAPPING)
    m.handle(Unwanted())
    m.handle(Cancelled())
    assert m.handle(SourceStalled()) == [] and m.handle(TargetStalled()) == []
    assert m.handle(SourceFailed()) == [End(how=MoveEnd.SOURCE_FAILED)]
    m = machine(MovePhase.SWAPPING)
    m.handle(SourceStalled())
    m.handle(Unwanted())
    assert m.handle(Promoted()) == [End(how=MoveEnd.PROMOTED)]


def test_stalled_directory_reverts_the_assignment_until_it_recovers() -> None:
    for stalled in (SourceStalled(), TargetStalled()):
        for phase in (MovePhase.QUEUED, MovePhase.ACCEPTED):
            m = machine(phase)
            assert m.handle(stalled) == [REVERT] and m.handle(stalled) == []
            assert m.handle(CAUGHT_UP)[0] == AssignDirectory(directory_id=B, move_id=MOVE)
    assert machine(MovePhase.SWAPPING).handle(TargetStalled()) == []
    m = machine(MovePhase.SWAPPING)
    assert m.handle(SourceStalled()) == [REVERT] and m.handle(SourceStalled()) == []
    assert m.handle(SwapFailed()) == [CopyOn()] and m.phase is MovePhase.COPYING
    m = machine(MovePhase.SWAPPING)
    m.handle(SourceStalled())
    assert m.handle(Promoted()) == [ReportDirectory(directory_id=B), End(how=MoveEnd.PROMOTED)]


def test_acceptance_of_another_move_has_no_effect() -> None:
    """The late acceptance of a cancelled move must not let this move swap."""
    late = AssignmentAccepted(move_id=OTHER_MOVE)
    for phase in MovePhase:
        m = machine(phase)
        assert m.handle(late) == [] and m.phase is phase


def test_replica_move_events_after_its_end_have_no_effect() -> None:
    m = machine(MovePhase.ENDED)
    for event in (LAGGING, CAUGHT_UP, ACCEPTED, Cancelled(), SourceFailed(), TargetFailed()):
        assert m.handle(event) == [] and m.is_over


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        (MovePhase.COPYING, ACCEPTED),
        (MovePhase.ACCEPTED, ACCEPTED),
        (MovePhase.COPYING, Promoted()),
        (MovePhase.ACCEPTED, SwapFailed()),
        (MovePhase.SWAPPING, LAGGING),
    ],
)
def test_replica_move_invalid_event_raises_invalid_transition_with_the_state(
    phase: MovePhase, event: Event
) -> None:
    m = machine(phase)
    with pytest.raises(InvalidTransition) as caught:
        m.handle(event)
    assert m.phase is phase and str(m) in str(caught.value)


_EVENTS = st.sampled_from(
    [
        LAGGING, CAUGHT_UP, CAUGHT_UP, ACCEPTED, ACCEPTED, Promoted(), SwapFailed(), Cancelled(),
        Unwanted(), SourceFailed(), TargetFailed(), SourceStalled(), TargetStalled(),
        AssignmentAccepted(move_id=OTHER_MOVE),
    ]
)  # fmt: skip


class World:
    """A model of disks and metadata that carries out the actions."""

    def __init__(self, *, is_accepted: bool) -> None:
        self.assigned = B if is_accepted else A
        self.current = A
        self.has_future = True
        self.is_here = True
        self.has_agreed = is_accepted
        self.is_over = False
        #: Whether the controller had accepted when the swap started, regardless of later reports.
        self.may_swap = False

    def happened(self, event: Event) -> None:
        match event:
            case AssignmentAccepted(move_id=move_id) if move_id == MOVE:
                self.has_agreed = True
            case Promoted():
                assert self.may_swap and self.has_future
                self.current, self.has_future = B, False
            case Unwanted():
                self.is_here = False
            case _:
                pass

    def carry_out(self, action: Action) -> None:
        assert not self.is_over, "no action follows the end"
        match action:
            case AssignDirectory():
                assert action.move_id == MOVE and self.assigned == A
                self.assigned = action.directory_id
            case ReportDirectory():
                assert self.is_here, "a removed replica is assigned to no directory"
                assert action.directory_id == self.current
                self.assigned, self.has_agreed = action.directory_id, False
            case DropFuture():
                assert self.current == A and self.has_future
                self.has_future = False
            case CloseGateAndPromote():
                assert self.assigned == B and self.has_agreed and self.has_future
                self.may_swap = True
            case CopyOn():
                assert self.has_future
            case End():
                self.is_over = True


@given(st.lists(_EVENTS, max_size=30), st.booleans())
def test_replica_move_random_events_keep_one_current_copy_and_a_matching_assignment(
    events: list[Event], is_resumed: bool
) -> None:
    m = ReplicaMoveState(move_id=MOVE, source=A, target=B, is_accepted=is_resumed)
    world = World(is_accepted=is_resumed)
    for event in events:
        try:
            actions = m.handle(event)
        except InvalidTransition:
            continue
        m.check_invariants()
        if not world.is_over:
            world.happened(event)
        for action in actions:
            world.carry_out(action)
        assert not (world.is_over and world.is_here) or world.assigned == world.current
