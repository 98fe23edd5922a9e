"""``TopicLedger``: the acknowledged creations, enlargements and deletions of topics.

Topics are identified by id: a topic that is recreated under the same name is another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.core.ids import TopicId


class TopicLedger:
    """An acknowledged creation must hold until a deletion is requested."""

    def __init__(self) -> None:
        #: Minimum number of partitions of each topic.
        self._made: dict[TopicId, int] = {}
        self._asked_gone: set[TopicId] = set()
        self._gone: set[TopicId] = set()

    def made(self, topic_id: TopicId, partitions: int) -> None:
        """Note a creation or enlargement: the topic has at least that many partitions."""
        self._made[topic_id] = max(partitions, self._made.get(topic_id, 0))

    def asks_gone(self, topic_id: TopicId) -> None:
        """Note the request of a deletion: the topic may be gone from now on."""
        self._asked_gone.add(topic_id)

    def gone(self, topic_id: TopicId) -> None:
        """Note an acknowledged deletion."""
        self._gone.add(topic_id)

    def may_be_gone(self, topic_id: TopicId) -> bool:
        return topic_id in self._asked_gone

    def is_gone(self, topic_id: TopicId) -> bool:
        return topic_id in self._gone

    def judge(self, partitions: Mapping[TopicId, int]) -> list[str]:
        """Return the violations of topics with these numbers of partitions; one sentence each."""
        findings = [
            f"topic {topic_id} is there, and its deletion was acknowledged"
            for topic_id in self._gone
            if topic_id in partitions
        ]
        for topic_id, least in self._made.items():
            if topic_id in self._asked_gone:
                continue
            if topic_id not in partitions:
                findings.append(f"topic {topic_id} was made, no client deleted it, and it is gone")
            elif partitions[topic_id] < least:
                findings.append(
                    f"topic {topic_id} has {partitions[topic_id]} partitions, and was acknowledged "
                    f"to have {least}"
                )
        return findings
