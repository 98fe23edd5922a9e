"""PURE. ``TopicLedger``: which topics somebody was told are made, grown and deleted.

By topic id: a topic that is made anew under the name of one that was deleted is another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.core.ids import TopicId


class TopicLedger:
    """What was acknowledged holds, until the deletion is asked for."""

    def __init__(self) -> None:
        #: How many partitions each has at least.
        self._made: dict[TopicId, int] = {}
        self._asked_gone: set[TopicId] = set()
        self._gone: set[TopicId] = set()

    def made(self, topic_id: TopicId, partitions: int) -> None:
        """Or grown: it has so many at least."""
        self._made[topic_id] = max(partitions, self._made.get(topic_id, 0))

    def asks_gone(self, topic_id: TopicId) -> None:
        """Its deletion is asked for; from now on it may be gone."""
        self._asked_gone.add(topic_id)

    def gone(self, topic_id: TopicId) -> None:
        """Its deletion was acknowledged."""
        self._gone.add(topic_id)

    def may_be_gone(self, topic_id: TopicId) -> bool:
        return topic_id in self._asked_gone

    def is_gone(self, topic_id: TopicId) -> bool:
        return topic_id in self._gone

    def judge(self, partitions: Mapping[TopicId, int]) -> list[str]:
        """What is wrong with a cluster whose topics have so many partitions; one sentence each."""
        findings = [
            f"topic {topic_id} is there, and its deletion was acknowledged"
            for topic_id in self._gone
            if topic_id in partitions
        ]
        for topic_id, least in self._made.items():
            if topic_id in self._asked_gone:
                continue
            if topic_id not in partitions:
                findings.append(f"topic {topic_id} was made, nobody deleted it, and it is gone")
            elif partitions[topic_id] < least:
                findings.append(
                    f"topic {topic_id} has {partitions[topic_id]} partitions, and was acknowledged "
                    f"to have {least}"
                )
        return findings
