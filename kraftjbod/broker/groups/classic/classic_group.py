"""PURE. ``ClassicGroup``: the state machine of one group of the classic protocol at its
coordinator.

``handle(event, now_ms) -> list[Action]``; call it with ``TimePassed`` at ``next_deadline_ms``.

* A *generation* is a set of members with their assignments. It begins at the end of a join phase.
  The group leader computes the assignment, which takes effect when it is written to the log.
* A member that joins, leaves, expires or changes its subscription starts a join phase. The other
  members learn of it by heartbeats and rejoin. The phase ends when all have rejoined, or after the
  longest rebalance timeout. Then dynamic members that did not rejoin are removed. Static members
  (KIP-345) stay until their sessions expire.
* A group that was empty waits shortly for more members, so that many starting members need one
  phase.
* A waiting request is answered exactly once: by the phase, a removal, a timeout, or the end of this
  coordinator.

Rules and codes are Kafka's (GroupMetadataManager, "classicGroup…"). The protocol's metadata and
assignments are opaque here. Offsets, records and clocks are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    GroupAction,
    GroupEvent,
    GroupState,
    GroupWritten,
    HeartbeatAnswer,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    RebalanceRequired,
    SyncAnswer,
    SyncRequested,
    TimePassed,
    Token,
    Unloaded,
    WriteGroup,
)
from kraftjbod.broker.groups.classic.group_roster import GroupLimits as GroupLimits
from kraftjbod.broker.groups.classic.group_roster import GroupRoster, Member
from kraftjbod.broker.groups.records.group_records import GroupMetadata
from kraftjbod.core.errors import ErrorCode

#: Removal timeout of a new member, even while its JoinGroup waits; Kafka's number.
NEW_MEMBER_TIMEOUT_MS: Final = 300_000
NEVER: Final = 1 << 62

_Written = Callable[[ErrorCode], None]


class ClassicGroup:
    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self._limits = limits
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self._roster = GroupRoster()
        #: At or before the time of the next action.
        self.next_deadline_ms = NEVER
        #: End of the join phase, or of the wait for SyncGroup requests; None otherwise.
        self._phase_deadline_ms: int | None = None
        #: Initial join phase of an empty group: the remaining wait, the present window, and whether
        #: a member joined in the window. None in other phases.
        self._initial_left_ms: int | None = None
        self._window_ms = 0
        self._is_joined_in_window = False
        self._writes: dict[int, _Written] = {}
        self._last_write = 0
        self._now_ms = 0
        self._actions: list[GroupAction] = []

    def __repr__(self) -> str:
        return (
            f"<ClassicGroup {self.group_id} {self.state.value} generation={self.generation} "
            f"members={len(self.members)}>"
        )

    @property
    def members(self) -> dict[str, Member]:
        """The members by member id, in the order of joining."""
        return self._roster.members

    @property
    def static_members(self) -> dict[str, str]:
        """The member ids of static members, by instance id."""
        return self._roster.static_members

    @property
    def pending(self) -> dict[str, int]:
        """Ids given to new members that must send JoinGroup again, with the monotonic ms at which
        they expire.
        """
        return self._roster.pending

    @property
    def leader(self) -> str | None:
        return self._roster.leader

    @property
    def is_used(self) -> bool:
        """Whether the group has members, pending member ids or pending writes."""
        return bool(self.members or self.pending or self._writes)

    def load(self, kept: GroupMetadata, now_ms: int) -> None:
        """Restore the last written state of the group. The sessions of its members start again at
        ``now_ms`` (monotonic).
        """
        self.generation = kept.generation
        self.protocol_type = kept.protocol_type or None
        self.protocol_name = kept.protocol_name
        self._roster.leader = kept.leader
        self._now_ms = now_ms
        for one in kept.members:
            member = Member.loaded(one, kept.protocol_name)
            self._roster.add(member)
            self._renew(member)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY

    def handle(self, event: GroupEvent, now_ms: int) -> list[GroupAction]:
        self._now_ms = now_ms
        match event:
            case JoinRequested():
                self._join(event)
            case SyncRequested():
                self._sync(event)
            case HeartbeatReceived():
                self._say(event.token, HeartbeatAnswer(self._heartbeat(event)))
            case LeaveRequested():
                self._leave(event)
            case GroupWritten():
                self._written(event)
            case TimePassed():
                self._time_passed()
            case RebalanceRequired():
                if self.state is GroupState.STABLE:
                    self._rebalance()
            case Unloaded():
                self._unload(event.code)
            case _:
                assert_never(event)
        actions, self._actions = self._actions, []
        return actions

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Return NONE if the sender may commit offsets, else the error code for it.

        An accepted commit outside a transaction renews the member's session.

        :param generation: negative for a sender that is no member of the group.
        :param now_ms: monotonic time.
        :param in_transaction: the sender is a producer (TxnOffsetCommit).
        """
        self._now_ms = now_ms
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
        code = self._roster.check(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE or in_transaction:
            return code
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._renew(self.members[member_id])
        return ErrorCode.NONE

    # --- joining ---------------------------------------------------------------------------------

    def _join(self, request: JoinRequested) -> None:
        member_id = request.member_id
        if not self._roster.admits_member(member_id, self.state, self._limits.max_size):
            self.pending.pop(member_id, None)
            if member_id in self.members:
                self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
                self._members_left()
            self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
        elif self.state is GroupState.DEAD:
            self._refuse_join(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._roster.supports(request, self.protocol_type):
            self._refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not member_id:
            self._join_as_new(request)
        elif member_id in self.pending and request.instance_id is None:
            del self.pending[member_id]
            self._add(member_id, request)
        else:
            code = self._roster.check(member_id, request.instance_id)
            if code is ErrorCode.NONE:
                self._join_again(self.members[member_id], request)
            else:
                self._refuse_join(request, code)

    def _join_as_new(self, request: JoinRequested) -> None:
        instance_id, fresh_id = request.instance_id, request.fresh_member_id
        if instance_id is not None and instance_id in self.static_members:
            self._replace_static(self.members[self.static_members[instance_id]], request)
        elif instance_id is not None or not request.asks_again:
            self._add(fresh_id, request)
        else:
            self.pending[fresh_id] = self._due(request.session_timeout_ms)
            self._refuse_join(request, ErrorCode.MEMBER_ID_REQUIRED, member_id=fresh_id)

    def _add(self, member_id: str, request: JoinRequested) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member(member_id, request)
        self._roster.add(member)
        self._is_joined_in_window = True
        member.session_deadline_ms = self._due(NEW_MEMBER_TIMEOUT_MS)
        self._park_join(member, request.token)
        self._rebalance_or_complete()

    def _join_again(self, member: Member, request: JoinRequested) -> None:
        is_same = member.protocols == request.protocols
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                self._take(member, request)
                self._maybe_complete_join()
            case GroupState.COMPLETING_REBALANCE if is_same:
                self._renew_times(member, request)
                self._say(request.token, self._generation_for(member))
            case GroupState.STABLE if is_same and member.member_id != self.leader:
                self._renew_times(member, request)
                self._say(request.token, self._generation_for(member))
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self._take(member, request)
                self._rebalance()
            case _:
                self._refuse_join(request, ErrorCode.UNKNOWN_MEMBER_ID)

    def _take(self, member: Member, request: JoinRequested) -> None:
        self._roster.take(member, request)
        self._park_join(member, request.token)

    def _renew_times(self, member: Member, request: JoinRequested) -> None:
        self._roster.take(member, request)
        self._renew(member)

    def _park_join(self, member: Member, token: Token) -> None:
        before = self._roster.swap_join_token(member, token)
        if before is not None:
            self._say(before, JoinAnswer(code=ErrorCode.REBALANCE_IN_PROGRESS))

    def _refuse_join(
        self, request: JoinRequested, code: ErrorCode, *, member_id: str | None = None
    ) -> None:
        said = request.member_id if member_id is None else member_id
        self._say(request.token, JoinAnswer(code=code, member_id=said))

    def _generation_for(self, member: Member, *, skips: bool = False) -> JoinAnswer:
        is_leader = member.member_id == self.leader
        return JoinAnswer(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            skip_assignment=skips and is_leader,
            member_id=member.member_id,
            members=self._roster.subscriptions(self.protocol_name) if is_leader else (),
        )

    # --- replacement of a static member ----------------------------------------------------------

    def _replace_static(self, member: Member, request: JoinRequested) -> None:
        """Give the member id of the request to a static member that restarted (KIP-345, KIP-814).

        If the group's protocol stays the same, no rebalance follows. The new id takes effect when
        it is written to the log.
        """
        old_id, old_leader = member.member_id, self.leader
        before = member.terms
        self._end_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._end_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        self._roster.rename(member, request.fresh_member_id)
        self._roster.take(member, request)
        self._renew(member)
        if self.state is GroupState.STABLE and self._roster.choose_protocol() == self.protocol_name:
            answer = self._generation_for(member, skips=request.knows_skipping)
            if not request.knows_skipping:
                # It must not compute an assignment, so it gets its former member id as leader.
                answer = JoinAnswer(
                    generation=self.generation,
                    protocol_type=self.protocol_type,
                    protocol_name=self.protocol_name,
                    leader=old_leader or "",
                    member_id=member.member_id,
                )

            def written(code: ErrorCode) -> None:
                is_still_so = self.members.get(request.fresh_member_id) is member
                if code is not ErrorCode.NONE and is_still_so:
                    self._roster.rename(member, old_id)
                    self._roster.restore(member, before)
                self._say(
                    request.token, answer if code is ErrorCode.NONE else JoinAnswer(code=code)
                )

            self._write(self._roster.assignments(), written)
            return
        self._park_join(member, request.token)
        self._rebalance_or_complete()

    # --- the join phase --------------------------------------------------------------------------

    def _rebalance_or_complete(self) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()
        else:
            self._rebalance()

    def _rebalance(self) -> None:
        """Start a join phase. Members that wait for their assignment get REBALANCE_IN_PROGRESS."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        is_initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if is_initial:
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._window_ms = delay_ms
            self._initial_left_ms = max(self._roster.rebalance_timeout_ms() - delay_ms, 0)
            self._is_joined_in_window = False
            self._phase_deadline_ms = self._due(delay_ms)
            return
        self._initial_left_ms = None
        self._phase_deadline_ms = self._due(self._roster.rebalance_timeout_ms())
        self._maybe_complete_join()

    def _maybe_complete_join(self) -> None:
        if self._initial_left_ms is not None or self.pending:
            return
        if self._roster.are_all_joining:
            self._complete_join()

    def _join_phase_is_over(self) -> None:
        left_ms = self._initial_left_ms
        if left_ms and self._window_ms and self._is_joined_in_window:
            before_ms, self._window_ms = self._window_ms, min(self._window_ms, left_ms)
            self._initial_left_ms = max(left_ms - before_ms, 0)
            self._is_joined_in_window = False
            self._phase_deadline_ms = self._due(self._window_ms)
            return
        self._complete_join()

    def _complete_join(self) -> None:
        self._initial_left_ms = None
        for member in list(self.members.values()):
            if not member.is_joining and member.instance_id is None:
                self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self._roster.elect_leader():
            # Only static members remain, and none has rejoined: their sessions decide.
            self._phase_deadline_ms = self._due(self._roster.rebalance_timeout_ms())
            return
        self.generation += 1
        self._phase_deadline_ms = None
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol_name = self._roster.leader = None
            self._write({}, lambda _code: None)
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol_name = self._roster.choose_protocol()
        self._phase_deadline_ms = self._due(self._roster.rebalance_timeout_ms())
        for member in self.members.values():
            member.is_new = member.has_synced = False
            self._renew(member)
            token = self._roster.swap_join_token(member, None)
            if token is not None:
                self._say(token, self._generation_for(member))

    # --- the assignment --------------------------------------------------------------------------

    def _sync(self, request: SyncRequested) -> None:
        code = self._check_sync(request)
        if code is not ErrorCode.NONE:
            self._say(request.token, SyncAnswer(code=code))
            return
        member = self.members[request.member_id]
        member.has_synced = True
        if self.state is GroupState.STABLE:
            self._renew(member)
            self._say(request.token, self._assignment_of(member))
            return
        self._end_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = request.token
        if member.member_id == self.leader:
            self._write_assignments(request.assignments)

    def _check_sync(self, request: SyncRequested) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._roster.check(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return code
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        for said, own in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if said is not None and own is not None and said != own:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _write_assignments(self, assignments: Mapping[str, bytes]) -> None:
        """Write the assignments. Replicated assignments take effect if the generation is
        unchanged."""
        generation = self.generation
        wanted = {member_id: assignments.get(member_id, b"") for member_id in self.members}

        def written(code: ErrorCode) -> None:
            is_over = self.state is not GroupState.COMPLETING_REBALANCE
            if is_over or self.generation != generation:
                return
            if code is not ErrorCode.NONE:
                self._drop_assignments(code)
                self._rebalance()
                return
            self.state = GroupState.STABLE
            self._phase_deadline_ms = None
            for member in self.members.values():
                member.assignment = wanted.get(member.member_id, b"")
                token, member.sync_token = member.sync_token, None
                if token is not None:
                    self._renew(member)
                    self._say(token, self._assignment_of(member))

        self._write(wanted, written)

    def _assignment_of(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _drop_assignments(self, code: ErrorCode) -> None:
        for member in self.members.values():
            member.assignment = b""
            self._end_sync(member, code)

    def _sync_phase_is_over(self) -> None:
        """Remove the members that sent no SyncGroup in this generation, and rebalance if there are
        any."""
        self._phase_deadline_ms = None
        late = [one.member_id for one in self.members.values() if not one.has_synced]
        for member_id in late:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if late:
            self._rebalance()

    def _write(self, assignments: Mapping[str, bytes], written: _Written) -> None:
        self._last_write += 1
        self._writes[self._last_write] = written
        group = self._roster.to_group_metadata(
            self.protocol_type, self.generation, self.protocol_name, assignments
        )
        self._actions.append(WriteGroup(self._last_write, group))

    def _written(self, event: GroupWritten) -> None:
        written = self._writes.pop(event.write_id, None)
        if written is not None:
            written(event.code)

    # --- staying and leaving ---------------------------------------------------------------------

    def _heartbeat(self, event: HeartbeatReceived) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._roster.check(event.member_id, event.instance_id)
        if code is not ErrorCode.NONE:
            return code
        if event.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._renew(self.members[event.member_id])
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _leave(self, request: LeaveRequested) -> None:
        members, pending = len(self.members), len(self.pending)
        codes = tuple(self._leave_one(*one) for one in request.members)
        if len(self.members) < members:
            self._members_left()
        elif len(self.pending) < pending:
            self._pending_left()
        self._say(request.token, LeaveAnswer(codes))

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not member_id:
            # An operator removes a static member without its member id.
            member_id = self.static_members.get(instance_id or "", "")
        elif member_id in self.pending:
            del self.pending[member_id]
            return ErrorCode.NONE
        code = self._roster.check(member_id, instance_id)
        if code is ErrorCode.NONE:
            self._remove(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return code

    def _members_left(self) -> None:
        match self.state:
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                self._rebalance()
            case _:
                self._pending_left()

    def _pending_left(self) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()

    def _remove(self, member_id: str, code: ErrorCode) -> None:
        """Remove the member and answer its waiting requests with ``code``."""
        member = self._roster.remove(member_id)
        self._end_join(member, code)
        self._end_sync(member, code)

    # --- time ------------------------------------------------------------------------------------

    def _time_passed(self) -> None:
        now_ms = self._now_ms
        gone = [member_id for member_id, at_ms in self.pending.items() if at_ms <= now_ms]
        for member_id in gone:
            del self.pending[member_id]
        lost = [one for one in self.members.values() if self._is_lost(one)]
        for member in lost:
            self._remove(member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if lost:
            self._members_left()
        elif gone:
            self._pending_left()
        if self._phase_deadline_ms is not None and self._phase_deadline_ms <= now_ms:
            if self.state is GroupState.PREPARING_REBALANCE:
                self._join_phase_is_over()
            else:
                self._sync_phase_is_over()
        self.next_deadline_ms = self._earliest_ms()

    def _is_lost(self, member: Member) -> bool:
        """Return whether the session has expired; False for a member that waits, which sends no
        heartbeats."""
        if member.session_deadline_ms is None or member.session_deadline_ms > self._now_ms:
            return False
        if not member.is_new and (member.is_joining or member.sync_token is not None):
            member.session_deadline_ms = None
            return False
        return True

    def _renew(self, member: Member) -> None:
        if not (member.is_new and member.is_joining):
            member.session_deadline_ms = self._due(member.session_timeout_ms)

    def _due(self, in_ms: int) -> int:
        """Return the time ``in_ms`` from now; ``next_deadline_ms`` is moved there if it is
        later."""
        at_ms = self._now_ms + in_ms
        self.next_deadline_ms = min(self.next_deadline_ms, at_ms)
        return at_ms

    def _earliest_ms(self) -> int:
        phase_ms = NEVER if self._phase_deadline_ms is None else self._phase_deadline_ms
        return min((phase_ms, *self._roster.deadlines()))

    # --- the end ---------------------------------------------------------------------------------

    def _unload(self, code: ErrorCode) -> None:
        self.state = GroupState.DEAD
        self.next_deadline_ms = NEVER
        self._phase_deadline_ms = self._initial_left_ms = None
        for member in self.members.values():
            self._end_join(member, code)
            self._end_sync(member, code)
        writes, self._writes = self._writes, {}
        for written in writes.values():
            written(code)

    def _end_join(self, member: Member, code: ErrorCode) -> None:
        token = self._roster.swap_join_token(member, None)
        if token is not None:
            self._renew(member)
            said = "" if code is ErrorCode.FENCED_INSTANCE_ID else member.member_id
            self._say(token, JoinAnswer(code=code, member_id=said))

    def _end_sync(self, member: Member, code: ErrorCode) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            # The member could not send heartbeats while it waited.
            self._renew(member)
            self._say(token, SyncAnswer(code=code))

    def _say(
        self, token: Token, answer: JoinAnswer | SyncAnswer | HeartbeatAnswer | LeaveAnswer
    ) -> None:
        self._actions.append(Answer(token, answer))
