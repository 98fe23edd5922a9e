"""LOOP. ``Leaderships``: publishes the partitions that this broker leads to subscribers.

* The replica manager notes each change of a role. The metadata publisher, the handler of directory
  states or a move publishes it when the change has been carried out.
* Subscribers receive each change once, in order. A replaced log, or another topic with the same
  name, is a resignation and an election. A newer leader epoch with the same log is an election
  only.
* A failed directory ends leaderships at once. A full or hung one does not: this broker leads its
  partitions, with the same log, until the metadata names another leader. Reads and writes in the
  meantime return their own errors.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import LeaderEpoch, TopicId, TopicPartition
from kraftjbod.core.telemetry import get_logger


class Leadership(NamedTuple):
    """A topic partition that this broker leads, with the leader epoch."""

    topic_partition: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch


class LeadershipSubscriber(Protocol):
    """A subscriber to leaderships.

    The methods run after the change of the role, in the same event loop iteration. A method may
    start tasks, but must not await or raise.
    """

    def elected(self, leadership: Leadership) -> None:
        """Note that this broker leads. If it led before, the leader epoch is newer."""

    def resigned(self, leadership: Leadership) -> None:
        """Note that this broker does not lead any more, or not with the same log.

        :param leadership: the leadership that ended.
        """


class Leaderships:
    """Collects changes of leaderships and publishes them to subscribers.

    Call ``note`` where a role changes, and ``publish`` when the change has been carried out.
    """

    def __init__(self) -> None:
        self._subscribers: list[LeadershipSubscriber] = []
        #: The leaderships as last noted.
        self._led: dict[TopicPartition, Leadership] = {}
        #: Noted but unpublished leaderships, each with whether it begins.
        self._unpublished: deque[tuple[Leadership, bool]] = deque()
        self._is_publishing = False
        self._log = get_logger(component="leaderships")

    def __len__(self) -> int:
        return len(self._led)

    def subscribe(self, subscriber: LeadershipSubscriber) -> None:
        """Add a subscriber. Call it before the first metadata, because earlier leaderships are not
        sent."""
        assert not self._led, "too late"
        self._subscribers.append(subscriber)

    def note(self, replica: HostedReplica) -> None:
        """Queue the replica's change of role for :meth:`publish`. No effect if this broker led it
        in the same leader epoch already.
        """
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
        """Queue the end of the replica's leadership for :meth:`publish`: it is not leader any more,
        or lost its log. No effect if it did not lead.
        """
        before = self._led.get(replica.topic_partition)
        if before is not None and before.topic_id == replica.topic_id:
            del self._led[replica.topic_partition]
            self._unpublished.append((before, False))

    def publish(self) -> None:
        """Send all noted changes to the subscribers, in order. A call by a subscriber returns at
        once, and the running call sends its changes. An error of a subscriber is logged.
        """
        if self._is_publishing:
            return  # A subscriber noted another change: the outer call publishes it.
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
            # A bug in one subscriber: notify the others and keep the broker running.
            self._log.error(
                "leadership_subscriber_failed",
                partition=str(leadership.topic_partition),
                subscriber=type(subscriber).__name__,
                exc_info=e,
            )
