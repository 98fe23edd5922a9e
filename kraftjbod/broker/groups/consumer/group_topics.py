"""PURE. The topics of the cluster for consumer groups: by name, with values that change when they
do.

Subscriptions can be regular expressions of RE2, as in Kafka. Matching takes time linear in the
length of the topic name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from kraftjbod.core.ids import BrokerId, TopicId
from kraftjbod.core.text.linear_pattern import LinearPattern
from kraftjbod.metadata.state import MetadataState

_HASH_BYTES: Final = 8
#: Cache size, so that an expression is compiled once for all groups and members.
_KEPT_REGEXES: Final = 256


class GroupTopic(NamedTuple):
    topic_id: TopicId
    size: int
    """Number of partitions."""


#: An opaque value that is only compared.
Layout = Hashable


class GroupTopics(Protocol):
    """The topics of the cluster (ids, partition counts and racks), as far as a consumer group needs
    them for its assignments.
    """

    @property
    def version(self) -> int:
        """The offset of the metadata."""

    @property
    def layout(self) -> Layout:
        """An opaque value that changes with topic ids, partition counts and racks."""

    def layout_of(self, names: Collection[str]) -> Layout:
        """Return a value like :attr:`layout` that changes only with the topics of these names, or
        racks.
        """

    def topic(self, name: str) -> GroupTopic | None: ...

    def name(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]: ...

    def hash_of(self, names: Collection[str]) -> int:
        """Return a hash of the named topics' ids, partition counts and racks; 0 if none of them
        exists.
        """


class ClusterTopics:
    """Implementation of :class:`GroupTopics` that reads the broker's metadata without a copy."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state

    @property
    def version(self) -> int:
        return self._state.offset

    @property
    def layout(self) -> Layout:
        return self._state.layout.topics, self._state.layout.racks

    def layout_of(self, names: Collection[str]) -> Layout:
        found = (self._state.topic(name) for name in sorted(names))
        topics = tuple((one.topic_id, one.layout_offset) for one in found if one is not None)
        return self._state.layout.racks, topics

    def topic(self, name: str) -> GroupTopic | None:
        topic = self._state.topic(name)
        return None if topic is None else GroupTopic(topic.topic_id, len(topic.partitions))

    def name(self, topic_id: TopicId) -> str | None:
        topic = self._state.topics.get(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        return self._state.topic_ids

    def hash_of(self, names: Collection[str]) -> int:
        # Not Kafka's hash: it is only compared with hashes that this cluster wrote.
        whole = hashlib.blake2b(digest_size=_HASH_BYTES)
        is_any = False
        for name in sorted(names):
            topic = self._state.topic(name)
            if topic is None:
                continue
            is_any = True
            whole.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
            for index in sorted(topic.partitions):
                whole.update(repr(self._racks(topic.partitions[index].replicas)).encode())
        return int.from_bytes(whole.digest(), "big", signed=True) if is_any else 0

    def _racks(self, replicas: Iterable[BrokerId]) -> list[str]:
        brokers = self._state.brokers
        found = (brokers.get(broker_id) for broker_id in replicas)
        return sorted(one.rack for one in found if one is not None and one.rack is not None)


def check_regex(text: str) -> None:
    """Require that ``text`` is a regular expression of RE2.

    :raises OperatingError: INVALID_REGULAR_EXPRESSION, with the reason.
    """
    _compiled(text)


def matching(text: str, topics: GroupTopics) -> frozenset[str]:
    """Return the topic names that the regular expression ``text`` matches completely.

    :raises OperatingError: as :func:`check_regex`.
    """
    return frozenset(filter(_compiled(text).fits, topics.names()))


@lru_cache(maxsize=_KEPT_REGEXES)
def _compiled(text: str) -> LinearPattern:
    return LinearPattern(text)
