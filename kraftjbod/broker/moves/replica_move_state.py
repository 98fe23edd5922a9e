"""PURE. One move of a replica between two directories of this broker, as a pure machine.

COPYING -> QUEUED (the controller is asked to name the target) -> ACCEPTED (it has agreed) ->
SWAPPING (appends wait, the last bytes are copied, the copies change places) -> ENDED.

The rules (KIP-113, as altered by KIP-858, "Intra-broker replica movement"):

* the controller is asked when the future copy has caught up for the first time, and the copying
  goes on meanwhile;
* the copies change places only after the controller has agreed, and after catching up again;
* while a directory does not answer, the controller is not to believe that the replica is in the
  healthy one of the two: it could not serve there yet, and nobody else would be asked to lead;
* whatever ends a move early takes back what may have reached the controller, unless the replica
  itself leaves this broker: then there is nobody to assign;
* a future copy is dropped only on purpose: never because a disk died, but when its disk is full,
  for what it holds takes the space that the disk needs (KIP-928);
* an answer that belongs to another move changes nothing.

A move that is resumed after a restart begins in COPYING, or in ACCEPTED if metadata names the
target already. ``alter_log_dirs_manager.py`` is the driver.
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
    COPYING = "copying"
    QUEUED = "queued"
    ACCEPTED = "accepted"
    SWAPPING = "swapping"
    ENDED = "ended"


class MoveEnd(Enum):
    """How a move came to its end."""

    PROMOTED = "promoted"
    CANCELLED = "cancelled"
    UNWANTED = "unwanted"
    """The replica is not hosted here any more."""
    SOURCE_FAILED = "source_failed"
    TARGET_FAILED = "target_failed"
    TARGET_FILLED_UP = "target_filled_up"


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One step is done; ``is_caught_up``: the future copy holds what the current one held then."""

    is_caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentAccepted:
    move_id: Uuid


@dataclass(frozen=True, slots=True)
class Promoted:
    """The copies have changed places."""


@dataclass(frozen=True, slots=True)
class SwapFailed:
    """They have not, and neither directory is to blame."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody wants the replica to stay where it is, or to go elsewhere."""


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The replica leaves this broker."""


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The directory of the current copy is offline."""


@dataclass(frozen=True, slots=True)
class TargetFailed:
    """The directory of the future copy is offline."""


@dataclass(frozen=True, slots=True)
class SourceStalled:
    """The directory of the current copy does not answer."""


@dataclass(frozen=True, slots=True)
class TargetStalled:
    """The directory of the future copy does not answer."""


@dataclass(frozen=True, slots=True)
class TargetFilledUp:
    """The directory of the future copy is saturated."""


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
    """Ask the controller to name the target; the answer comes back with the move's id."""

    directory_id: DirectoryId
    move_id: Uuid


@dataclass(frozen=True, slots=True)
class CopyOn:
    """Copy what there is to copy now, or wait for more."""


@dataclass(frozen=True, slots=True)
class CloseGateAndPromote:
    """Hold appends back, copy the last bytes, let the copies change places."""


@dataclass(frozen=True, slots=True)
class DropFuture:
    """Remove the future copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDirectory:
    """Report to the controller where the replica is, or died."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The move is over; nothing follows."""

    how: MoveEnd


Action = AssignDirectory | CopyOn | CloseGateAndPromote | DropFuture | ReportDirectory | End


class ReplicaMoveState:
    """``handle(event)`` gives what is to be done; all attributes are for reading.

    There is no time in it: what takes too long is noticed by the driver.

    :raises InvalidTransition: from ``handle``, if an event makes no sense in the present phase.
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
        #: Set while it is too late to stop the swap: what to do if the swap fails.
        self._wanted_end: MoveEnd | None = None
        #: During a swap: the controller was told that the replica is in the source after all.
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
        """Whether the controller may believe that the replica is in the target."""
        asked = (MovePhase.QUEUED, MovePhase.ACCEPTED, MovePhase.SWAPPING)
        return self.phase in asked and not self._is_taken_back

    def check_invariants(self) -> None:
        assert self.source != self.target, self
        is_swapping = self.phase is MovePhase.SWAPPING
        assert is_swapping or (self._wanted_end is None and not self._is_taken_back), self

    def handle(self, event: Event) -> list[Action]:
        if self.is_over:
            return []  # What was under way when it ended comes home late.
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
        """The move goes on, and the controller is asked again when it has caught up again."""
        reverted = self._revert()
        if self.phase is not MovePhase.SWAPPING:
            self.phase = MovePhase.COPYING
        elif isinstance(stalled, SourceStalled):
            self._is_taken_back = True
        else:
            return []  # Appends wait for the target: let somebody else lead.
        return reverted

    def _promoted(self) -> list[Action]:
        is_told = not self._is_taken_back or self._wanted_end is MoveEnd.UNWANTED
        reported = [] if is_told else [ReportDirectory(directory_id=self.target)]
        return [*reported, *self._end(MoveEnd.PROMOTED)]

    def _swap_failed(self) -> list[Action]:
        self.phase = MovePhase.COPYING if self._is_taken_back else MovePhase.ACCEPTED
        self._is_taken_back = False
        if self._wanted_end is None:
            return [CopyOn()]
        how, self._wanted_end = self._wanted_end, None
        return self._stop(how)

    def _stop(self, how: MoveEnd) -> list[Action]:
        """End on purpose, unless the copies are changing places: that is waited for."""
        if self.phase is MovePhase.SWAPPING:
            # Who leaves this broker leaves, whatever else was wanted.
            if self._wanted_end is not MoveEnd.UNWANTED:
                self._wanted_end = how
            return []
        self._wanted_end = how
        return [*self._revert(), DropFuture(), *self._end(how)]

    def _end_by_failure(self, how: MoveEnd) -> list[Action]:
        return [*self._revert(), *self._end(how)]

    def _revert(self) -> list[Action]:
        if self._wanted_end is MoveEnd.UNWANTED:
            return []  # Who leaves is assigned nowhere.
        return [ReportDirectory(directory_id=self.source)] if self.may_be_assigned else []

    def _end(self, how: MoveEnd) -> list[Action]:
        self.phase, self._wanted_end, self._is_taken_back = MovePhase.ENDED, None, False
        return [End(how=how)]
