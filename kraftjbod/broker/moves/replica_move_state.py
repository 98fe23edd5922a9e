"""PURE. The state machine of one move of a replica between two directories of this broker.

COPYING -> QUEUED (the controller is asked to assign the target) -> ACCEPTED (it has agreed) ->
SWAPPING (appends wait, the last bytes are copied, the copies are swapped) -> ENDED.

The rules (KIP-113, as changed by KIP-858, "Intra-broker replica movement"):

* The controller is asked when the future copy has caught up for the first time. Copying continues
  meanwhile.
* The copies are swapped only after the controller has agreed and the copy has caught up again.
* While a directory is stalled, the controller must not assign the replica to the healthy one: the
  replica cannot serve there yet, and the controller would not elect another leader.
* A move that ends early withdraws an assignment that may have reached the controller, unless the
  replica leaves this broker.
* A future copy is dropped only deliberately. It is kept if a disk failed, and dropped if its disk
  is full, because it takes space there (KIP-928).
* A response for another move changes nothing.

A move that resumes after a restart begins in COPYING, or in ACCEPTED if the metadata already names
the target. ``alter_log_dirs_manager.py`` drives the machine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from kraftjbod.core.errors import InvalidTransition
from kraftjbod.core.ids import DirectoryId, Uuid

_STORY_LINES: Final = 30


class MovePhase(Enum):
    """Phases of a move, in this order."""

    COPYING = "copying"
    """The future copy has not caught up yet."""
    QUEUED = "queued"
    """The controller was asked to assign the target. Copying continues."""
    ACCEPTED = "accepted"
    """The controller has agreed. Copying continues until the future copy has caught up again."""
    SWAPPING = "swapping"
    """Appends wait while the last bytes are copied and the copies are swapped."""
    ENDED = "ended"


class MoveEnd(Enum):
    """Reasons for which a move ended."""

    PROMOTED = "promoted"
    """The move succeeded: the future copy is the replica."""
    CANCELLED = "cancelled"
    UNWANTED = "unwanted"
    """The replica is no longer hosted here."""
    SOURCE_FAILED = "source_failed"
    TARGET_FAILED = "target_failed"
    TARGET_FILLED_UP = "target_filled_up"


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Event: one copying step of the move has ended.

    ``is_caught_up``: the future copy has all records that the current copy had.
    """

    is_caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentAccepted:
    """Event: the controller has assigned the replica to the target of the move ``move_id``."""

    move_id: Uuid


@dataclass(frozen=True, slots=True)
class Promoted:
    """Event: the copies were swapped."""


@dataclass(frozen=True, slots=True)
class SwapFailed:
    """Event: the swap failed, but both directories are online."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Event: the replica should stay in the source, or move to another target."""


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Event: the replica leaves this broker."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """Event: the directory of the current copy is offline."""


@dataclass(frozen=True, slots=True)
class TargetFailed:
    """Event: the directory of the future copy is offline."""


@dataclass(frozen=True, slots=True)
class SourceStalled:
    """Event: the directory of the current copy is stalled."""


@dataclass(frozen=True, slots=True)
class TargetStalled:
    """Event: the directory of the future copy is stalled."""


@dataclass(frozen=True, slots=True)
class TargetFilledUp:
    """Event: the directory of the future copy is saturated."""


Event = (
    Copied
    | AssignmentAccepted
    | Promoted
    | SwapFailed
    | Cancelled
    | Unwanted
    | SourceFailed
    | TargetFailed
    | SourceStalled
    | TargetStalled
    | TargetFilledUp
)

# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignDirectory:
    """Action: ask the controller to assign the replica to the target. The response has the move's
    id."""

    directory_id: DirectoryId
    move_id: Uuid


@dataclass(frozen=True, slots=True)
class CopyOn:
    """Action: copy the available records to the future copy, or wait for more records."""


@dataclass(frozen=True, slots=True)
class CloseGateAndPromote:
    """Action: hold back appends, copy the last bytes and swap the copies."""


@dataclass(frozen=True, slots=True)
class DropFuture:
    """Action: remove the future copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDirectory:
    """Action: report to the controller that the replica is in ``directory_id``."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Action: release the move, which ended for the reason ``how``."""

    how: MoveEnd


Action = AssignDirectory | CopyOn | CloseGateAndPromote | DropFuture | ReportDirectory | End


class ReplicaMoveState:
    """The state machine of one move: ``handle(event)`` returns the actions to perform.

    Attributes are read-only for callers. The machine has no notion of time: the driver detects
    stalls.

    :raises InvalidTransition: from ``handle``: the event is impossible in the present phase.
    """

    def __init__(
        self,
        *,
        move_id: Uuid,
        source: DirectoryId,
        target: DirectoryId,
        is_accepted: bool = False,
    ) -> None:
        self.move_id = move_id
        self.source = source
        self.target = target
        self.phase = MovePhase.ACCEPTED if is_accepted else MovePhase.COPYING
        #: During a swap, which cannot be stopped: the end to take if the swap fails.
        self._wanted_end: MoveEnd | None = None
        #: During a swap: the controller was notified that the replica stays in the source.
        self._is_taken_back = False
        self._story: deque[str] = deque(maxlen=_STORY_LINES)

    def __repr__(self) -> str:
        return (
            f"<ReplicaMoveState {self.phase.value} {self.source} -> {self.target} "
            f"move={self.move_id}>"
        )

    @property
    def is_over(self) -> bool:
        return self.phase is MovePhase.ENDED

    @property
    def may_be_assigned(self) -> bool:
        """Whether the controller may have assigned the replica to the target."""
        asked = (MovePhase.QUEUED, MovePhase.ACCEPTED, MovePhase.SWAPPING)
        return self.phase in asked and not self._is_taken_back

    def check_invariants(self) -> None:
        assert self.source != self.target, self
        is_swapping = self.phase is MovePhase.SWAPPING
        assert is_swapping or (self._wanted_end is None and not self._is_taken_back), self

    def handle(self, event: Event) -> list[Action]:
        if self.is_over:
            return []  # A late event of an ended move.
        self._require_legal(event)
        self._story.append(f"{self.phase.value}: {event}")
        match event:
            case Copied(is_caught_up=is_caught_up):
                return self._copied(is_caught_up)
            case AssignmentAccepted(move_id=move_id):
                return self._accepted(move_id)
            case Promoted():
                return self._promoted()
            case SwapFailed():
                return self._swap_failed()
            case Cancelled():
                return self._stop(MoveEnd.CANCELLED)
            case Unwanted():
                return self._stop(MoveEnd.UNWANTED)
            case SourceFailed():
                return self._end_by_failure(MoveEnd.SOURCE_FAILED)
            case TargetFailed():
                return self._end_by_failure(MoveEnd.TARGET_FAILED)
            case SourceStalled() | TargetStalled():
                return self._take_back(event)
            case TargetFilledUp():
                return self._stop(MoveEnd.TARGET_FILLED_UP)
            case _:
                assert_never(event)

    def _require_legal(self, event: Event) -> None:
        match event:
            case Copied():
                legal = self.phase is not MovePhase.SWAPPING
            case Promoted() | SwapFailed():
                legal = self.phase is MovePhase.SWAPPING
            case AssignmentAccepted(move_id=move_id) if move_id == self.move_id:
                legal = self.phase is MovePhase.QUEUED
            case _:
                legal = True
        if not legal:
            raise InvalidTransition(f"{event} makes no sense to {self!r}", tuple(self._story))

    def _copied(self, is_caught_up: bool) -> list[Action]:
        if not is_caught_up:
            return [CopyOn()]
        if self.phase is MovePhase.ACCEPTED:
            self.phase = MovePhase.SWAPPING
            return [CloseGateAndPromote()]
        if self.phase is MovePhase.QUEUED:
            return [CopyOn()]
        self.phase = MovePhase.QUEUED
        return [AssignDirectory(directory_id=self.target, move_id=self.move_id), CopyOn()]

    def _accepted(self, move_id: Uuid) -> list[Action]:
        if move_id != self.move_id:
            return []
        self.phase = MovePhase.ACCEPTED
        return [CopyOn()]

    def _take_back(self, stalled: SourceStalled | TargetStalled) -> list[Action]:
        """Withdraw the assignment. The move continues and asks again after the next catch-up.

        If the target stalls during a swap, the assignment stays.
        """
        reverted = self._revert()
        if self.phase is not MovePhase.SWAPPING:
            self.phase = MovePhase.COPYING
        elif isinstance(stalled, SourceStalled):
            self._is_taken_back = True
        else:
            return []  # Appends wait for the stalled target, so another broker should lead.
        return reverted

    def _promoted(self) -> list[Action]:
        is_reported = not self._is_taken_back or self._wanted_end is MoveEnd.UNWANTED
        reported = [] if is_reported else [ReportDirectory(directory_id=self.target)]
        return [*reported, *self._end(MoveEnd.PROMOTED)]

    def _swap_failed(self) -> list[Action]:
        self.phase = MovePhase.COPYING if self._is_taken_back else MovePhase.ACCEPTED
        self._is_taken_back = False
        if self._wanted_end is None:
            return [CopyOn()]
        how, self._wanted_end = self._wanted_end, None
        return self._stop(how)

    def _stop(self, how: MoveEnd) -> list[Action]:
        """End the move and drop its copy. During a swap, note ``how`` to end it if the swap
        fails."""
        if self.phase is MovePhase.SWAPPING:
            # A replica that leaves this broker has precedence over other reasons.
            if self._wanted_end is not MoveEnd.UNWANTED:
                self._wanted_end = how
            return []
        self._wanted_end = how
        return [*self._revert(), DropFuture(), *self._end(how)]

    def _end_by_failure(self, how: MoveEnd) -> list[Action]:
        return [*self._revert(), *self._end(how)]

    def _revert(self) -> list[Action]:
        if self._wanted_end is MoveEnd.UNWANTED:
            return []  # A replica that leaves this broker has no directory to assign.
        return [ReportDirectory(directory_id=self.source)] if self.may_be_assigned else []

    def _end(self, how: MoveEnd) -> list[Action]:
        self.phase, self._wanted_end, self._is_taken_back = MovePhase.ENDED, None, False
        return [End(how=how)]
