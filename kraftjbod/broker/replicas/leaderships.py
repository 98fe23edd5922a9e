"""LOOP. ``Leaderships``: which partitions this broker leads, published to whoever builds on that.

* The replica manager notes each change where a role changes; it is published when the change has
  been carried out: by the metadata publisher, the handler of directories' states, or a move.
* Subscribers hear of each change once, in the order in which they came. Another log, or another
  topic of the name, is a resignation and an election; a newer leader epoch with the same log is an
  election alone.
* A disk that dies ends leaderships at once. One that is full or hangs ends none: its partitions are
  led, with the log that they had, until metadata gives them to another broker. What cannot be
  written or read meanwhile says so itself.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import LeaderEpoch, TopicId, TopicPartition
from kraftjbod.core.telemetry import get_logger


class Leadership(NamedTuple):
    """That this broker leads a partition of a topic in an epoch."""

    topic_partition: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch


class LeadershipSubscriber(Protocol):
    """Called within what changed it: notes it, begins tasks, awaits nothing and raises nothing."""

    def elected(self, leadership: Leadership) -> None:
        """This broker leads, in a newer epoch than it did if it led before."""

    def resigned(self, leadership: Leadership) -> None:
        """It leads no more, or not with this log; ``leadership`` is the last one it had."""


class Leaderships:
    """``note`` where a role changes, ``publish`` when that is carried out."""

    def __init__(self) -> None:
        self._subscribers: list[LeadershipSubscriber] = []
        #: As noted last.
        self._led: dict[TopicPartition, Leadership] = {}
        #: Noted, not published yet: the leadership and whether it begins.
        self._unpublished: deque[tuple[Leadership, bool]] = deque()
        self._is_publishing = False
        self._log = get_logger(component="leaderships")

    def __len__(self) -> int:
        return len(self._led)

    def subscribe(self, subscriber: LeadershipSubscriber) -> None:
        """Before the first metadata; who comes later would not hear of what is led already."""
        assert not self._led, "too late"
        self._subscribers.append(subscriber)

    def note(self, replica: HostedReplica) -> None:
        """The replica's role may be another now."""
        partition = replica.partition
        if partition is None or not partition.is_leader:
            self.note_end(replica)
            return
        before = self._led.get(replica.topic_partition)
        now = Leadership(replica.topic_partition, replica.topic_id, partition.leader_epoch)
        if now == before:
            return
        if before is not None and before.topic_id != now.topic_id:
            self._unpublished.append((before, False))
        self._led[replica.topic_partition] = now
        self._unpublished.append((now, True))

    def note_end(self, replica: HostedReplica) -> None:
        """It is not led any more, or its log is gone."""
        before = self._led.get(replica.topic_partition)
        if before is not None and before.topic_id == replica.topic_id:
            del self._led[replica.topic_partition]
            self._unpublished.append((before, False))

    def publish(self) -> None:
        """Let subscribers know of all that was noted."""
        if self._is_publishing:
            return  # A subscriber changed something: it is next.
        self._is_publishing = True
        try:
            while self._unpublished:
                leadership, begins = self._unpublished.popleft()
                for subscriber in self._subscribers:
                    self._call(subscriber, leadership, begins=begins)
        finally:
            self._is_publishing = False

    def _call(
        self, subscriber: LeadershipSubscriber, leadership: Leadership, *, begins: bool
    ) -> None:
        try:
            if begins:
                subscriber.elected(leadership)
            else:
                subscriber.resigned(leadership)
        except Exception as e:
            # A bug of one subscriber: the others hear of it, and the broker goes on.
            self._log.error(
                "leadership_subscriber_failed",
                partition=str(leadership.topic_partition),
                subscriber=type(subscriber).__name__,
                exc_info=e,
            )
