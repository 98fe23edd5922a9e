"""PURE. ``ConsumerGroup``: the state machine of one consumer group (KIP-848) at its coordinator.

``handle(event, moment) -> list[ConsumerGroupAction]``; call it with ``TimePassed`` at
``next_deadline_ms``.

* Requests are decided one at a time against the state. Their changes are written as one batch, and
  they are answered when it is replicated. Requests that arrive meanwhile wait for the next batch.
* The log limits the size of a batch. If the log refuses a batch as too large, its requests are
  decided again in smaller batches; only a request that is too large alone is refused.
* A batch that is not in the log is undone with all its decisions. A batch that is or may be in the
  log stays in effect even if its requests get an error: the next coordinator will read it.
* A member that sends no heartbeats, or does not revoke partitions in time, is removed.

consumer_members.py handles requests of members, classic_members.py those of the classic protocol.
target_assignment.py computes assignments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, assert_never

from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    HeartbeatAnswer,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    SyncAnswer,
    SyncRequested,
    TimePassed,
    Unloaded,
)
from kraftjbod.broker.groups.consumer.classic_members import ClassicMembers
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    BecameClassic,
    Commit,
    ConsumerAnswer,
    ConsumerGroupAction,
    ConsumerGroupEvent,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    DeletionAnswer,
    DeletionRequested,
    FactsWritten,
    MemberRequest,
    Moment,
    WriteFacts,
)
from kraftjbod.broker.groups.consumer.consumer_group_state import ConsumerGroupState, GroupChanges
from kraftjbod.broker.groups.consumer.consumer_members import ConsumerMembers
from kraftjbod.broker.groups.consumer.group_conversion import classic_group_of
from kraftjbod.broker.groups.consumer.member_deadlines import NEVER, MemberDeadlines, Overdue
from kraftjbod.broker.groups.consumer.target_assignment import TargetAssignment
from kraftjbod.broker.groups.records.consumer_group_records import ConsumerFact, MemberState
from kraftjbod.broker.groups.records.group_records import Fact, GroupFact, record_of
from kraftjbod.core.errors import ErrorCode, LocalProtocolError, OperatingError
from kraftjbod.protocol.record_batch import HEADER_BYTES
from kraftjbod.protocol.records import Record, most_bytes_of

#: Limit of requests that wait for a write. A member has one in flight, so this allows many members.
MAX_WAITING: Final = 10_000
#: Approximate limit of the facts in a batch; further requests wait for the next batch.
MAX_BATCH_FACTS: Final = 2_000
#: Delay before a member is removed again after a failed write.
FENCE_AGAIN_MS: Final = 1_000
NO_LIMIT: Final = 1 << 62


class ConsumerGroup:
    def __init__(self, group_id: str, settings: ConsumerGroupSettings) -> None:
        self.group_id = group_id
        self._settings = settings
        self.state = ConsumerGroupState(group_id)
        self._changes = GroupChanges(self.state)
        self._target = TargetAssignment(self._changes, settings)
        self._deadlines = MemberDeadlines()
        self._members = ConsumerMembers(self._changes, self._target, settings)
        self._classic = ClassicMembers(self._changes, self._members, self._deadlines, settings)
        #: Facts about the previous group, written with the first changes.
        self._first: list[Fact] = []
        #: Number of changes that converted a classic group; they are part of any batch.
        self._followed = 0
        #: Number of members that the present batch removes.
        self._thrown_out = 0
        #: Limit of the batch size after the log refused a larger batch.
        self._most_bytes = NO_LIMIT
        self._waiting: deque[MemberRequest] = deque()
        #: Answers to send when the present changes are written.
        self._answers: list[tuple[MemberRequest, object]] = []
        self._is_writing = False
        self._is_over = False
        #: The classic group that this group becomes with the present write; None otherwise.
        self._becomes: BecameClassic | None = None
        self._actions: list[ConsumerGroupAction] = []

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.state!r} {'writes' * self._is_writing}>"

    def configure(self, settings: ConsumerGroupSettings) -> None:
        """Apply changed settings. Deadlines that are already set stay."""
        if settings is not self._settings:
            self._settings = settings
            self._target.configure(settings)
            self._members.configure(settings)

    @property
    def next_deadline_ms(self) -> int:
        """The time of the next deadline in monotonic milliseconds; ``NEVER`` during a write."""
        return NEVER if self._is_writing or self._is_over else self._deadlines.next_ms

    @property
    def is_used(self) -> bool:
        """Whether the log has facts of the group, or a write or a request is pending."""
        return self.state.is_written or self._is_writing or bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members and no pending writes or requests."""
        return not (self.state.members or self._is_writing or self._waiting)

    @property
    def assignor(self) -> str:
        return self._target.assignor

    # --- the beginning ---------------------------------------------------------------------------

    def load(self, fact: ConsumerFact) -> None:
        """Apply a fact from the log; :meth:`loaded` must follow."""
        self.state.apply(fact)

    def loaded(self, now_ms: int) -> None:
        """Start the sessions and revocation timeouts of the members at ``now_ms`` (monotonic),
        after all facts were loaded.
        """
        for member_id in self.state.members:
            self._renew(member_id, now_ms)

    def follow(self, facts: Iterable[Fact], now_ms: int) -> None:
        """Create this group from a classic group that it replaces. The sessions of the members
        start at ``now_ms`` (monotonic).

        :param facts: the facts that convert the group, to be written with its first changes;
            without committed offsets.
        """
        for fact in facts:
            if isinstance(fact, GroupFact):
                self._first.append(fact)
            else:
                assert not hasattr(fact, "topic_partition"), fact
                self._changes.put(fact)
        self._followed = len(self._changes)
        self.loaded(now_ms)

    # --- events ----------------------------------------------------------------------------------

    def handle(self, event: ConsumerGroupEvent, moment: Moment) -> list[ConsumerGroupAction]:
        match event:
            case FactsWritten():
                self._written(event)
            case Unloaded():
                self._end(event.code)
            case TimePassed():
                pass
            case _ if self._is_over:
                self._say(event, _refusal(event, ErrorCode.NOT_COORDINATOR))
            case _ if len(self._waiting) >= MAX_WAITING:
                self._say(event, _refusal(event, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            case _:
                self._waiting.append(event)
        if not (self._is_writing or self._is_over):
            self._work(moment)
        actions, self._actions = self._actions, []
        return actions

    def _work(self, moment: Moment) -> None:
        """Decide waiting requests and write their changes as one batch, within the size limit."""
        self._remove_overdue(moment)
        is_new = bool(self._first)
        while self._waiting and self._becomes is None and len(self._changes) < MAX_BATCH_FACTS:
            mark = len(self._changes)
            request = self._waiting.popleft()
            answer = self._decide(request, moment)
            if not (len(self._changes) or self._becomes):
                self._say(request, answer)
                continue
            is_alone = not self._answers and (is_new or not mark)
            if self._is_too_large(moment) and not is_alone:
                self._take_back(mark)
                self._waiting.appendleft(request)
                break
            self._answers.append((request, answer))
        if is_new and not self._has_consumers(of_none=False):
            # The request that needed the conversion was refused.
            self._changes.take_back()
            self._first.clear()
        facts = [*self._first, *self._changes.facts, *self._last]
        if facts:
            self._is_writing = True
            self._actions.append(WriteFacts(tuple(facts), tuple(self._records(moment))))
        else:
            self._settle()

    @property
    def _last(self) -> list[Fact]:
        """The fact to write after the changes: the classic group that this group becomes, if
        any."""
        kept = None if self._becomes is None else self._becomes.group
        return [] if kept is None else [GroupFact(self.group_id, kept)]

    def _records(self, moment: Moment) -> Iterator[Record]:
        """Yield the records of the present batch.

        :raises LocalProtocolError: a name is longer than records can hold.
        """
        self._changes.encode(moment.wall_ms)
        yield from (record_of(fact, moment.wall_ms) for fact in self._first)
        yield from self._changes.records
        yield from (record_of(fact, moment.wall_ms) for fact in self._last)

    def _is_too_large(self, moment: Moment) -> bool:
        size_bytes = HEADER_BYTES + self._changes.size_bytes
        if self._first or self._last:
            size_bytes = HEADER_BYTES + sum(map(most_bytes_of, self._records(moment)))
        return size_bytes > min(moment.max_batch_bytes, self._most_bytes)

    def _take_back(self, mark: int) -> None:
        """Undo all decisions after the first ``mark`` changes."""
        self._changes.take_back(mark)
        self._target.clear_cached_comparisons()
        self._becomes = None

    def _decide(self, request: MemberRequest, moment: Moment) -> object:
        mark, epoch = len(self._changes), self.state.epoch
        had_consumers = self._has_consumers()
        try:
            answer = self._answer_to(request, moment)
            self._changes.encode(moment.wall_ms)
        except OperatingError as e:
            self._take_back(mark)
            return _refusal(request, e.code, e.message)
        except LocalProtocolError:
            # A name in the request is too long for a record.
            self._take_back(mark)
            return _refusal(request, ErrorCode.INVALID_REQUEST)
        if had_consumers and not self._has_consumers():
            self._become_classic(epoch, moment)
        return answer

    def _answer_to(self, request: MemberRequest, moment: Moment) -> object:
        match request:
            case ConsumerHeartbeat() if request.epoch < 0:
                return self._members.leave(request, moment)
            case ConsumerHeartbeat():
                answer = self._members.heartbeat(request, moment)
                self._renew(request.member_id, moment.now_ms)
                return answer
            case JoinRequested() if not self.state.members:
                # The group has no members, so it becomes a classic group.
                return self._end_for(request)
            case JoinRequested():
                return self._classic.join(request, moment)
            case SyncRequested():
                return self._classic.sync(request, moment)
            case HeartbeatReceived():
                return self._classic.heartbeat(request, moment)
            case LeaveRequested():
                return self._classic.leave(request, moment)
            case DeletionRequested():
                return self._delete()
            case _:
                assert_never(request)

    def _delete(self) -> DeletionAnswer:
        if self.state.members:
            return DeletionAnswer(ErrorCode.NON_EMPTY_GROUP)
        self._changes.put(*self.state.end())
        return DeletionAnswer(ErrorCode.NONE)

    # --- writing ---------------------------------------------------------------------------------

    def _written(self, event: FactsWritten) -> None:
        if self._is_over:
            return
        self._is_writing = False
        is_divisible = len(self._answers) + self._thrown_out > 1
        if event.code is ErrorCode.NONE:
            self._changes.keep()
            self._first.clear()
            self._most_bytes = NO_LIMIT
        elif event.is_too_large and is_divisible:
            self._most_bytes = self._changes.size_bytes // 2
            self._take_back(self._followed if self._first else 0)
            self._waiting.extendleft(request for request, _ in reversed(self._answers))
            self._answers.clear()
            return
        else:
            self._take_back(0)
            self._first.clear()
            self._answers = [(one, _refusal(one, event.code)) for one, _ in self._answers]
        self._settle()

    def _settle(self) -> None:
        """Send the pending answers, and convert the group if it becomes classic: no write is
        pending."""
        self._answer_all()
        if self._becomes is not None:
            self._is_over = True
            waiting = (*self._becomes.waiting, *self._waiting)
            self._waiting.clear()
            self._actions.append(BecameClassic(self._becomes.group, waiting))

    def _answer_all(self) -> None:
        answers, self._answers = self._answers, []
        for request, answer in answers:
            self._say(request, answer)

    def _say(self, request: MemberRequest, answer: object) -> None:
        if answer is not _LATER:
            self._actions.append(Answer(request.token, answer))

    def _end(self, code: ErrorCode) -> None:
        self._is_over = True
        self._answers = [(one, _refusal(one, code)) for one, _ in self._answers]
        self._answer_all()
        for request in self._waiting:
            self._say(request, _refusal(request, code))
        self._waiting.clear()

    # --- back to the classic protocol ------------------------------------------------------------

    def _has_consumers(self, *, of_none: bool = True) -> bool:
        """Return whether a member uses the consumer protocol.

        :param of_none: the result for a group without members.
        """
        members = self.state.members
        return any(member.classic is None for member in members.values()) if members else of_none

    def _become_classic(self, generation: int, moment: Moment) -> None:
        """Convert the group to a classic group if that is allowed and fits a batch.

        All remaining members use the classic protocol.

        :param generation: the group epoch from before the last consumer-protocol member left. The
            members get a rebalance, as in Kafka, and revoke partitions as in any rebalance.
        """
        is_too_large = len(self.state.members) > self._settings.classic_max_size
        if not self._settings.migration_policy.may_downgrade or is_too_large:
            return
        mark = len(self._changes)
        try:
            group = classic_group_of(self.state, generation, moment)
            self._changes.put(*self.state.end())
            self._becomes = BecameClassic(group, ())
            own_bytes = sum(map(most_bytes_of, [*self._records(moment)][mark:]))
        except (OperatingError, LocalProtocolError):
            # A member's metadata of the common protocol cannot be decoded or written.
            self._take_back(mark)
            return
        if HEADER_BYTES + own_bytes > moment.max_batch_bytes:
            # The change alone exceeds a batch: the members keep their present state.
            self._take_back(mark)

    def _end_for(self, request: JoinRequested) -> object:
        self._changes.put(*self.state.end())
        self._becomes = BecameClassic(None, (request,))
        return _LATER

    # --- time ------------------------------------------------------------------------------------

    def _renew(self, member_id: str, now_ms: int) -> None:
        """Renew the member's session.

        A member of the consumer protocol that must revoke partitions keeps its revocation deadline.
        """
        member, settings = self.state.members[member_id], self._settings
        if member.classic is not None:
            self._deadlines.renew_session(member_id, now_ms, member.classic.session_timeout_ms)
            return
        self._deadlines.renew_session(member_id, now_ms, settings.session_timeout_ms)
        if self.state.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
            self._deadlines.begin_phase(member_id, now_ms, member.rebalance_timeout_ms)
        else:
            self._deadlines.end_phase(member_id)

    def _remove_overdue(self, moment: Moment) -> None:
        overdue = self._deadlines.overdue(moment.now_ms)
        lost = list(dict.fromkeys(one.member_id for one in overdue if self._is_lost(one)))
        self._thrown_out = count = len(lost)
        if not lost:
            return
        had_consumers, epoch = self._has_consumers(), self.state.epoch
        mark = len(self._changes)
        while True:
            self._members.remove(lost[:count], moment)
            self._changes.encode(moment.wall_ms)
            if count == 1 or not self._is_too_large(moment):
                break
            self._take_back(mark)
            count //= 2
        self._thrown_out = count
        for at, member_id in enumerate(lost):
            # If the write fails, they stay members until the next attempt. Members beyond this
            # batch are removed in the next one.
            again_ms = FENCE_AGAIN_MS if at < count else 0
            self._deadlines.renew_session(member_id, moment.now_ms, again_ms)
        if had_consumers and not self._has_consumers():
            self._become_classic(epoch, moment)

    def _is_lost(self, overdue: Overdue) -> bool:
        member = self.state.members.get(overdue.member_id)
        if member is None or overdue.is_session or member.classic is not None:
            return member is not None
        # The revocation may have been undone with a failed write.
        return self.state.current(overdue.member_id).state is MemberState.UNREVOKED_PARTITIONS

    # --- offsets ---------------------------------------------------------------------------------

    def check_commit(self, asked: Commit) -> ErrorCode:
        """Return NONE if the sender may commit offsets, else the error code for it."""
        has_no_member = asked.epoch < 0 and not asked.member_id
        if (asked.epoch < 0 and not self.state.members) or (asked.in_transaction and has_no_member):
            return ErrorCode.NONE
        member = self.state.members.get(asked.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_classic = member.classic is not None
        if not (is_classic or asked.knows_epochs or asked.in_transaction):
            return ErrorCode.UNSUPPORTED_VERSION
        current = self.state.current(asked.member_id)
        held = {**current.assigned, **current.revoking}
        is_of_before = asked.epoch < current.epoch and all(
            # The member alone has held the partition since that epoch (KIP-1251).
            one in held and asked.epoch >= held[one]
            for one in asked.partitions
        )
        if asked.epoch == current.epoch or is_of_before:
            return ErrorCode.NONE
        # Producers do not know member epochs and would fail on another code.
        knows_generations = is_classic or asked.in_transaction
        return ErrorCode.ILLEGAL_GENERATION if knows_generations else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return NONE if the sender may fetch committed offsets, else the error code for it.

        :param member_id: None, with a negative ``epoch``, for a sender that is no member.
        """
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.state.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.state.current(member.member_id).epoch:
            return ErrorCode.NONE
        is_classic = member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


_LATER: Final = object()


def _refusal(request: MemberRequest, code: ErrorCode, message: str | None = None) -> object:
    match request:
        case ConsumerHeartbeat():
            return ConsumerAnswer(code=code, message=message)
        case JoinRequested():
            return JoinAnswer(code=code, member_id=request.member_id)
        case SyncRequested():
            return SyncAnswer(code=code)
        case HeartbeatReceived():
            return HeartbeatAnswer(code)
        case LeaveRequested():
            return LeaveAnswer(tuple(code for _ in request.members))
        case DeletionRequested():
            return DeletionAnswer(code)
        case _:
            assert_never(request)
