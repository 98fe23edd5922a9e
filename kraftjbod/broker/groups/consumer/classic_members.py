"""PURE. Members with the classic protocol in a consumer group.

Clients are migrated one at a time (KIP-848, "Online migration"). For a classic member the
coordinator replaces the group leader: JoinGroup is a full heartbeat, the member epoch is the
generation, and SyncGroup returns the assignment. REBALANCE_IN_PROGRESS tells a member to rejoin. It
has its rebalance timeout for JoinGroup, and again for SyncGroup.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.groups.classic.group_events import (
    HeartbeatAnswer,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    SyncAnswer,
    SyncRequested,
)
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings, Moment
from kraftjbod.broker.groups.consumer.consumer_group_state import GroupChanges
from kraftjbod.broker.groups.consumer.consumer_members import ConsumerMembers
from kraftjbod.broker.groups.consumer.consumer_protocol import (
    Subscription,
    assignment_bytes,
    read_subscription,
)
from kraftjbod.broker.groups.consumer.group_topics import GroupTopics
from kraftjbod.broker.groups.consumer.member_deadlines import MemberDeadlines
from kraftjbod.broker.groups.records.consumer_group_records import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
    Partitions,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicIdPartition, TopicPartition

CONSUMER: Final = "consumer"


class ClassicMembers:
    def __init__(
        self,
        changes: GroupChanges,
        members: ConsumerMembers,
        deadlines: MemberDeadlines,
        settings: ConsumerGroupSettings,
    ) -> None:
        self._state = changes.state
        self._members = members
        self._deadlines = deadlines
        self._settings = settings

    # --- JoinGroup -------------------------------------------------------------------------------

    def join(self, asked: JoinRequested, moment: Moment) -> JoinAnswer:
        """Answer JoinGroup: update the member, or ask a new one to repeat the request with its
        member id.

        :raises OperatingError: the request is refused, with the code for the member.
        """
        state = self._state
        self._check_protocols(asked)
        subscription = read_subscription(asked.protocols[0][1])
        is_known = asked.member_id in state.members or asked.instance_id in state.static_members
        if not is_known and len(state.members) >= self._settings.max_size:
            raise _refused("the group has as many members as it may", _E.GROUP_MAX_SIZE_REACHED)
        if not asked.member_id and asked.instance_id is None and asked.asks_again:
            return JoinAnswer(code=_E.MEMBER_ID_REQUIRED, member_id=asked.fresh_member_id)
        member_id = asked.member_id or asked.fresh_member_id
        before = self._found(asked, member_id)
        member = _described(asked, member_id, subscription)
        owned = _partitions(subscription, moment.topics)
        current = self._members.update(member, before, owned, moment)
        self._deadlines.renew_session(member_id, moment.now_ms, asked.session_timeout_ms)
        self._deadlines.end_phase(member_id)
        self._deadlines.begin_phase(member_id, moment.now_ms, asked.rebalance_timeout_ms)
        return JoinAnswer(
            generation=current.epoch,
            protocol_type=CONSUMER,
            protocol_name=asked.protocols[0][0],
            member_id=member_id,
        )

    def _check_protocols(self, asked: JoinRequested) -> None:
        if asked.protocol_type != CONSUMER or not asked.protocols:
            raise _refused("the group is of the type consumer", _E.INCONSISTENT_GROUP_PROTOCOL)
        common = {name for name, _ in asked.protocols}
        for member in self._state.members.values():
            if member.classic is not None and member.member_id != asked.member_id:
                common &= {name for name, _ in member.classic.protocols}
        if not common:
            raise _refused("no protocol is known to all", _E.INCONSISTENT_GROUP_PROTOCOL)

    def _found(self, asked: JoinRequested, member_id: str) -> ConsumerMember | None:
        """Return the member that sends the request, under its new id if it replaced a static
        member.

        None if the member is new.
        """
        state, instance_id = self._state, asked.instance_id
        if instance_id is None:
            return state.members.get(member_id)
        known_as = state.static_members.get(instance_id)
        if asked.member_id:
            self._check_instance(asked.member_id, instance_id)
            return state.members[member_id]
        return None if known_as is None else self._replaced(state.members[known_as], member_id)

    def _replaced(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        has_left = self._state.current(old.member_id).epoch < 0
        if old.classic is None and not has_left:
            raise _refused(
                f"the instance id {old.instance_id} is that of a member that has not left",
                _E.UNRELEASED_INSTANCE_ID,
            )
        return self._members.succeed(old, member_id)

    # --- SyncGroup -------------------------------------------------------------------------------

    def sync(self, asked: SyncRequested, moment: Moment) -> SyncAnswer:
        """Answer SyncGroup with the member's assignment.

        :raises OperatingError: the request is refused; REBALANCE_IN_PROGRESS if the assignment has
            changed, so that the member must rejoin.
        """
        member = self._classic(asked.member_id, asked.instance_id, asked.generation)
        assert member.classic is not None, member
        (name, metadata), current = (
            member.classic.protocols[0],
            self._state.current(asked.member_id),
        )
        own = {CONSUMER: asked.protocol_type, name: asked.protocol_name}
        if any(said is not None and said != is_so for is_so, said in own.items()):
            raise _refused("the protocol is another one", _E.INCONSISTENT_GROUP_PROTOCOL)
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
        if self._state.assignment_epoch > current.epoch and not is_revoking:
            raise _refused("the assignment has changed", _E.REBALANCE_IN_PROGRESS)
        self._deadlines.end_phase(asked.member_id)
        named = ((moment.topics.name(one.topic_id), one.partition) for one in current.assigned)
        assigned = [TopicPartition(name, index) for name, index in named if name is not None]
        version = read_subscription(metadata).version
        return SyncAnswer(
            protocol_type=CONSUMER,
            protocol_name=name,
            assignment=assignment_bytes(version, assigned),
        )

    # --- Heartbeat, LeaveGroup -------------------------------------------------------------------

    def heartbeat(self, asked: HeartbeatReceived, moment: Moment) -> HeartbeatAnswer:
        """Answer Heartbeat; the code is REBALANCE_IN_PROGRESS if the member must rejoin.

        :raises OperatingError: the sender is not a member of this generation.
        """
        member_id = asked.member_id
        member = self._classic(member_id, asked.instance_id, asked.generation)
        assert member.classic is not None, member
        self._deadlines.renew_session(member_id, moment.now_ms, member.classic.session_timeout_ms)
        if not self._has_to_join(member_id):
            return HeartbeatAnswer(ErrorCode.NONE)
        self._deadlines.begin_phase(member_id, moment.now_ms, member.rebalance_timeout_ms)
        return HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS)

    def _has_to_join(self, member_id: str) -> bool:
        state = self._state
        current = state.current(member_id)
        if current.epoch < state.assignment_epoch:
            return True
        match current.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                missing = state.target(member_id) - current.assigned.keys()
                return not any(one in state.holders for one in missing)
            case _:
                # Without consumer-protocol members, no other request triggers the assignment.
                is_stale = state.epoch > state.assignment_epoch
                return is_stale and all(one.classic for one in state.members.values())

    def leave(self, asked: LeaveRequested, moment: Moment) -> LeaveAnswer:
        """Answer LeaveGroup: remove the named members of either protocol.

        Members name themselves; an operator may name static members by their instance id alone.
        """
        codes, leaving = [], dict[str, None]()
        for member_id, instance_id in asked.members:
            found = member_id or self._state.static_members.get(instance_id or "", "")
            try:
                if instance_id is not None:
                    self._check_instance(found, instance_id)
                if found not in self._state.members:
                    raise _refused(f"{found} is no member", _E.UNKNOWN_MEMBER_ID)
            except OperatingError as e:
                codes.append(e.code)
            else:
                codes.append(ErrorCode.NONE)
                leaving[found] = None
        self._members.remove(leaving, moment)
        return LeaveAnswer(tuple(codes))

    # --- checks of the sender --------------------------------------------------------------------

    def _classic(self, member_id: str, instance_id: str | None, epoch: int) -> ConsumerMember:
        if instance_id is not None:
            self._check_instance(member_id, instance_id)
        member = self._state.members.get(member_id)
        if member is None or member.classic is None:
            raise _refused(f"{member_id} is no classic member", _E.UNKNOWN_MEMBER_ID)
        if epoch != self._state.current(member_id).epoch:
            raise _refused("the generation is another one", _E.ILLEGAL_GENERATION)
        return member

    def _check_instance(self, member_id: str, instance_id: str) -> None:
        known_as = self._state.static_members.get(instance_id)
        if known_as is None:
            raise _refused(f"no member has the instance id {instance_id}", _E.UNKNOWN_MEMBER_ID)
        if known_as != member_id:
            raise _refused(f"another member has instance id {instance_id}", _E.FENCED_INSTANCE_ID)


_E: Final = ErrorCode


def _refused(message: str, code: ErrorCode) -> OperatingError:
    return OperatingError(message, code=code)


def _described(asked: JoinRequested, member_id: str, subscription: Subscription) -> ConsumerMember:
    """Return the member that the request describes: a classic member always sends all its data."""
    return ConsumerMember(
        member_id=member_id,
        instance_id=asked.instance_id,
        rack_id=subscription.rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        classic=ClassicProtocols(
            session_timeout_ms=asked.session_timeout_ms, protocols=asked.protocols
        ),
    )


def _partitions(subscription: Subscription, topics: GroupTopics) -> Partitions:
    """Return the partitions of existing topics that the member owns according to
    ``subscription``."""
    found = ((topics.topic(one.topic), one.partition) for one in subscription.owned)
    return frozenset(
        TopicIdPartition(topic.topic_id, index) for topic, index in found if topic is not None
    )
