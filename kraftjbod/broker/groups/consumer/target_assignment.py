"""PURE. The target assignment of a consumer group and its epoch.

* The group epoch grows with every change of members, subscriptions and subscribed topics. The
  target assignment is then recomputed, but not more often than the configured interval.
* A regular expression stands for the topics that it last matched. It is matched again within
  seconds after topics changed, and at regular intervals.

Rules are Kafka's. assignors.py computes the assignment.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kraftjbod.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings, Moment
from kraftjbod.broker.groups.consumer.consumer_group_state import GroupChanges
from kraftjbod.broker.groups.consumer.group_topics import Layout, matching
from kraftjbod.broker.groups.records.consumer_group_records import (
    ConsumerMember,
    EpochFact,
    GroupEpoch,
    RegexFact,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochFact,
    TargetFact,
)
from kraftjbod.core.ids import TopicId

#: Delay before an expression is matched again after topics changed; Kafka's number.
REGEX_PAUSE_MS: Final = 10_000


class TargetAssignment:
    def __init__(self, changes: GroupChanges, settings: ConsumerGroupSettings) -> None:
        self._changes = changes
        self._state = changes.state
        self._settings = settings
        #: The layout of all topics at the last comparison of the hash; None forces a comparison.
        self._seen_layout: Layout = None
        #: Layout of the group's topics, and their hash.
        self._hashed: tuple[Layout, int] = (None, 0)
        #: Layout of all topics and wall time at the last matching of each expression.
        self._matched: dict[str, tuple[Layout, int]] = {}

    def configure(self, settings: ConsumerGroupSettings) -> None:
        self._settings = settings

    def clear_cached_comparisons(self) -> None:
        """Forget which topics were compared last, because the decisions since then were undone."""
        self._seen_layout = None
        self._matched.clear()

    @property
    def assignor(self) -> str:
        """Name of the configured assignor that most members request.

        If several have equally many votes, the greatest name. If no member requests a configured
        one, the first in the configuration.
        """
        members = self._state.members.values()
        votes = Counter(one.assignor for one in members if one.assignor is not None)
        known = [name for name in votes if name in self._settings.assignors]
        if not known:
            return self._settings.assignors[0]
        return max(known, key=lambda name: (votes[name], name))

    def refresh(self, moment: Moment, *, is_changed: bool) -> None:
        """Increment the group epoch if members, subscriptions or topics changed, and reassign if
        due.

        :param is_changed: whether a member or a subscription changed.
        """
        self._match_regexes(moment)
        if is_changed or moment.topics.layout != self._seen_layout:
            self._compare_topics(moment, is_changed=is_changed)
        if self._is_due(moment):
            self._assign(moment)

    def begin_epoch(self, moment: Moment) -> None:
        """Increment the group epoch. The next heartbeat triggers the assignment."""
        self._compare_topics(moment, is_changed=True)

    def _compare_topics(self, moment: Moment, *, is_changed: bool) -> None:
        own_hash = self._hash_of_topics(moment)
        if is_changed or own_hash != self._state.metadata_hash:
            epoch = GroupEpoch(epoch=self._state.epoch + 1, metadata_hash=own_hash)
            self._changes.put(*self._state.obsolete())
            self._changes.put(EpochFact(self._state.group_id, epoch))
        self._seen_layout = moment.topics.layout

    def _hash_of_topics(self, moment: Moment) -> int:
        """Return the hash of the group's topics, computed only if they have changed."""
        names = self._state.subscribed_names()
        layout = moment.topics.layout_of(names)
        if self._hashed[0] != layout:
            self._hashed = layout, moment.topics.hash_of(names)
        return self._hashed[1]

    def drop_regex(self, regex: str | None) -> None:
        """Forget the expression if no member uses it any more."""
        state = self._state
        if regex in state.regexes and regex not in state.used_regexes:
            self._changes.put(RegexFact(state.group_id, regex, None))
            self._matched.pop(regex, None)

    def _match_regexes(self, moment: Moment) -> None:
        state, layout = self._state, moment.topics.layout
        for regex in list(state.used_regexes):
            before = state.regexes.get(regex)
            matched_at, matched_ms = self._matched.get(regex, (None, 0))
            age_ms = abs(moment.wall_ms - matched_ms)
            is_old = age_ms >= self._settings.regex_refresh_ms
            is_old |= matched_at != layout and age_ms >= REGEX_PAUSE_MS
            if before is not None and not is_old:
                continue
            topics = matching(regex, moment.topics)
            self._matched[regex] = (layout, moment.wall_ms)
            if before is None or before.topics != topics:
                found = ResolvedRegex(
                    topics=topics, version=moment.topics.version, resolved_ms=moment.wall_ms
                )
                self._changes.put(RegexFact(state.group_id, regex, found))
                self._seen_layout = None

    def _is_due(self, moment: Moment) -> bool:
        state, interval_ms = self._state, self._settings.assignment_interval_ms
        if state.epoch <= state.assignment_epoch:
            return False
        # With a single member there are no other members' changes to wait for.
        is_alone = len(state.members) <= 1
        is_unknown = not state.assigned_ms
        passed_ms = moment.wall_ms - state.assigned_ms
        return is_alone or is_unknown or not 0 <= passed_ms < interval_ms

    def _assign(self, moment: Moment) -> None:
        state, sizes = self._state, dict[TopicId, int]()
        ids_of: dict[object, frozenset[TopicId]] = {}
        subscribers = []
        for member in state.members.values():
            subscription = (member.topic_names, member.topic_regex)
            if subscription not in ids_of:
                ids_of[subscription] = self._topic_ids(member, moment, sizes)
            subscribers.append(
                Subscriber(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    topics=ids_of[subscription],
                    target=state.target(member.member_id),
                )
            )
        assigned = ASSIGNORS[self.assignor](subscribers, sizes)
        for member_id, target in assigned.items():
            if target != state.target(member_id):
                self._changes.put(TargetFact(state.group_id, member_id, target))
        epoch = TargetEpoch(epoch=state.epoch, since_ms=moment.wall_ms)
        self._changes.put(TargetEpochFact(state.group_id, epoch))

    def _topic_ids(
        self, member: ConsumerMember, moment: Moment, sizes: dict[TopicId, int]
    ) -> frozenset[TopicId]:
        """Return the ids of the member's subscribed topics that exist.

        The partition count of each is added to ``sizes``.
        """
        found = (moment.topics.topic(name) for name in self._state.topics_of(member))
        known = {topic.topic_id: topic.size for topic in found if topic is not None}
        sizes.update(known)
        return frozenset(known)
