"""PURE. Members of a consumer group: joining, subscriptions, reconciliation and leaving.

A heartbeat has everything. Its changes are recorded in the order that Kafka's replay needs. The
answer has the partitions that the member may have from now on. Rules and codes are Kafka's
(GroupMetadataManager, "consumerGroup…").
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kraftjbod.broker.groups.consumer.consumer_group_events import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerAnswer,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    Moment,
)
from kraftjbod.broker.groups.consumer.consumer_group_state import GroupChanges
from kraftjbod.broker.groups.consumer.group_topics import check_regex
from kraftjbod.broker.groups.consumer.reconciliation import Destination, reconciled
from kraftjbod.broker.groups.consumer.target_assignment import TargetAssignment
from kraftjbod.broker.groups.records.consumer_group_records import (
    ConsumerMember,
    CurrentAssignment,
    CurrentFact,
    MemberFact,
    MemberState,
    Partitions,
    TargetFact,
)
from kraftjbod.core.errors import ErrorCode, OperatingError


class ConsumerMembers:
    def __init__(
        self, changes: GroupChanges, target: TargetAssignment, settings: ConsumerGroupSettings
    ) -> None:
        self._changes = changes
        self._state = changes.state
        self._target = target
        self._settings = settings

    def configure(self, settings: ConsumerGroupSettings) -> None:
        self._settings = settings

    # --- heartbeats ------------------------------------------------------------------------------

    def heartbeat(self, asked: ConsumerHeartbeat, moment: Moment) -> ConsumerAnswer:
        """Answer a heartbeat of a member that joins or stays.

        :raises OperatingError: the request is refused, with the code for the member.
        """
        before = self._found(asked)
        self._check_assignor_and_regex(asked)
        held = self._state.current(asked.member_id).assigned.keys()
        member = _described(asked, before)
        current = self.update(member, before, asked.owned, moment)
        is_sent = asked.epoch == JOINING or asked.is_full or current.assigned.keys() != held
        return ConsumerAnswer(
            member_id=member.member_id,
            epoch=current.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            assignment=frozenset(current.assigned) if is_sent else None,
        )

    def update(
        self,
        member: ConsumerMember,
        before: ConsumerMember | None,
        owned: Partitions | None,
        moment: Moment,
    ) -> CurrentAssignment:
        """Store the member, and advance it towards its target assignment by one step.

        :param before: the stored member; None if it is new.
        :param owned: the partitions that the member reports as its own; None if unchanged.
        :return: the member's assignment after the step.
        """
        is_new_to = before is None or _subscription(before) != _subscription(member)
        if member != before:
            self._changes.put(MemberFact(self._state.group_id, member.member_id, member))
        if before is not None:
            self._target.drop_regex(before.topic_regex)
        self._target.refresh(moment, is_changed=is_new_to)
        return self._reconcile(member, owned, moment, is_new_to=is_new_to)

    def _reconcile(
        self, member: ConsumerMember, owned: Partitions | None, moment: Moment, *, is_new_to: bool
    ) -> CurrentAssignment:
        state, member_id = self._state, member.member_id
        found = (moment.topics.topic(name) for name in state.topics_of(member))
        current = state.current(member_id)
        step = reconciled(
            current,
            Destination(
                member_id=member_id,
                target=state.target(member_id),
                target_epoch=state.assignment_epoch,
                topics={topic.topic_id for topic in found if topic is not None},
                is_subscription_new=is_new_to,
                holders=state.holders,
                owned=owned,
            ),
        )
        if replace(step, previous_epoch=current.previous_epoch) == current:
            return current
        self._changes.put(CurrentFact(state.group_id, member_id, step))
        return step

    def _found(self, asked: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that sends the heartbeat, under its new id if it replaced a static
        member.

        None if the member is new.

        :raises OperatingError: the member is unknown, or its epoch or instance id is refused.
        """
        member_id, instance_id = asked.member_id, asked.instance_id
        member = self._state.members.get(member_id)
        known_as = self._state.static_members.get(instance_id or "")
        if instance_id is not None and known_as != member_id:
            if known_as is not None:
                return self._replaced(asked, self._state.members[known_as])
            if asked.epoch != JOINING:
                raise OperatingError(
                    f"there is no member with the instance id {instance_id}",
                    code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
        if member is None:
            self._check_new(asked)
            return None
        self._check_epoch(asked, self._state.current(member_id))
        return member

    def _check_new(self, asked: ConsumerHeartbeat) -> None:
        if asked.epoch != JOINING:
            raise OperatingError(
                f"{asked.member_id} is no member of the group", code=ErrorCode.UNKNOWN_MEMBER_ID
            )
        if len(self._state.members) >= self._settings.max_size:
            raise OperatingError(
                f"the group has {self._settings.max_size} members, and may not have more",
                code=ErrorCode.GROUP_MAX_SIZE_REACHED,
            )

    def _check_epoch(self, asked: ConsumerHeartbeat, current: CurrentAssignment) -> None:
        if asked.epoch in (JOINING, current.epoch):
            return
        is_last = asked.epoch == current.previous_epoch and asked.epoch < current.epoch
        if is_last and asked.owned is not None and asked.owned <= current.assigned.keys():
            return  # Its last response was lost.
        raise OperatingError(
            f"the member's epoch is {current.epoch}, not {asked.epoch}; it has to give up its "
            "partitions and rejoin",
            code=ErrorCode.FENCED_MEMBER_EPOCH,
        )

    def _check_assignor_and_regex(self, asked: ConsumerHeartbeat) -> None:
        if asked.assignor is not None and asked.assignor not in self._settings.assignors:
            raise OperatingError(
                f"there is no assignor {asked.assignor}; there are "
                f"{', '.join(self._settings.assignors)}",
                code=ErrorCode.UNSUPPORTED_ASSIGNOR,
            )
        if asked.topic_regex and asked.topic_regex not in self._state.used_regexes:
            check_regex(asked.topic_regex)

    # --- static members --------------------------------------------------------------------------

    def _replaced(self, asked: ConsumerHeartbeat, old: ConsumerMember) -> ConsumerMember:
        """Replace the holder of the instance id by the sender, and return the member with its new
        id.

        :raises OperatingError: the sender may not replace the holder.
        """
        if asked.epoch != JOINING:
            raise OperatingError(
                f"the instance id {asked.instance_id} is that of another member now",
                code=ErrorCode.FENCED_INSTANCE_ID,
            )
        if old.classic is None and self._state.current(old.member_id).epoch != AWAY:
            raise OperatingError(
                f"the instance id {asked.instance_id} is that of a member that has not left",
                code=ErrorCode.UNRELEASED_INSTANCE_ID,
            )
        return self.succeed(old, asked.member_id)

    def succeed(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a static member another member id, with the same assignment, and return it with its
        new id.
        """
        state, group_id = self._state, self._state.group_id
        target, current = state.target(old.member_id), state.current(old.member_id)
        self._changes.put(*_end(group_id, old.member_id))
        member = replace(old, member_id=member_id)
        kept = dict.fromkeys(current.assigned, JOINING)
        self._changes.put(
            MemberFact(group_id, member_id, member),
            TargetFact(group_id, member_id, target),
            CurrentFact(
                group_id,
                member_id,
                CurrentAssignment(
                    epoch=JOINING, previous_epoch=JOINING, assigned=kept, revoking={}
                ),
            ),
        )
        return member

    # --- leaving ---------------------------------------------------------------------------------

    def leave(self, asked: ConsumerHeartbeat, moment: Moment) -> ConsumerAnswer:
        """Answer a heartbeat of a member that leaves, permanently or (a static member) temporarily.

        :raises OperatingError: the sender is not a member, or does not hold its instance id.
        """
        member_id = asked.member_id
        if asked.instance_id is not None:
            known_as = self._state.static_members.get(asked.instance_id)
            if known_as is not None and known_as != member_id:
                raise OperatingError(
                    f"the instance id {asked.instance_id} is that of another member",
                    code=ErrorCode.FENCED_INSTANCE_ID,
                )
        member = self._state.members.get(member_id)
        if member is None or (asked.epoch == AWAY and member.instance_id is None):
            raise OperatingError(
                f"{member_id} is no {'static ' * (asked.epoch == AWAY)}member of the group",
                code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
        if asked.epoch == LEAVING:
            self.remove([member_id], moment)
        else:
            current = self._state.current(member_id)
            away = CurrentAssignment(
                epoch=AWAY,
                previous_epoch=current.epoch,
                state=MemberState.STABLE,
                assigned=dict.fromkeys(current.assigned, JOINING),
                revoking={},
            )
            self._changes.put(CurrentFact(self._state.group_id, member_id, away))
        return ConsumerAnswer(member_id=member_id, epoch=asked.epoch)

    def remove(self, member_ids: Collection[str], moment: Moment) -> None:
        """Remove the members and free their partitions, so that a later heartbeat assigns them."""
        for member_id in member_ids:
            member = self._state.members[member_id]
            self._changes.put(*_end(self._state.group_id, member_id))
            self._target.drop_regex(member.topic_regex)
        if member_ids:
            # The next heartbeat triggers the new assignment.
            self._target.begin_epoch(moment)


def _end(group_id: str, member_id: str) -> tuple[CurrentFact, TargetFact, MemberFact]:
    return (
        CurrentFact(group_id, member_id, None),
        TargetFact(group_id, member_id, None),
        MemberFact(group_id, member_id, None),
    )


def _subscription(member: ConsumerMember) -> tuple[frozenset[str], str]:
    return member.topic_names, member.topic_regex or ""


def _described(asked: ConsumerHeartbeat, before: ConsumerMember | None) -> ConsumerMember:
    """Return the member as the heartbeat describes it. Fields that it omits stay unchanged."""
    was = before or ConsumerMember(member_id=asked.member_id)
    names, timeout_ms = asked.topic_names, asked.rebalance_timeout_ms
    return ConsumerMember(
        member_id=asked.member_id,
        instance_id=was.instance_id if asked.instance_id is None else asked.instance_id,
        rack_id=was.rack_id if asked.rack_id is None else asked.rack_id,
        client_id=asked.client_id,
        client_host=asked.client_host,
        topic_names=was.topic_names if names is None else names,
        topic_regex=was.topic_regex if asked.topic_regex is None else asked.topic_regex,
        rebalance_timeout_ms=was.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=was.assignor if asked.assignor is None else asked.assignor,
    )
