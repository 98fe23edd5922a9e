"""PURE. The topics that the cluster makes for itself: names, shapes and records, in one place.

A topic of this list is shown to clients as internal (Kafka's ``is_internal``), is made by brokers
and not by the first client that names it, and is written and read through internal_producer.py
and internal_reader.py. What one of them is made like follows the broker's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.rpc_messages import CreateTopicsRequest, NewTopic

PATIENCE_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """One of them, as a broker that finds it missing asks for it."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    takes_fewer_replicas: bool
    """Where too few brokers are alive it is made with as many replicas as there can be, after some
    patience; else it is not made until there are enough."""
    is_closed: bool
    """Each leader keeps in memory what it holds and writes it itself: no Produce is taken. Without
    this, Produce is taken from members of the cluster only."""
    schema: str
    """The module that says what its records hold, and reads and writes them."""

    def creation(self, replication_factor: int | None = None) -> CreateTopicsRequest:
        """The request for it, by default with as many replicas as it shall have."""
        topic = NewTopic(
            name=self.name,
            num_partitions=self.num_partitions,
            replication_factor=replication_factor or self.replication_factor,
            configs=dict(self.configs),
        )
        return CreateTopicsRequest(topics=(topic,))


class InternalTopics:
    """All of them, by name."""

    def __init__(self, topics: Iterable[InternalTopic] = ()) -> None:
        self._topics = {topic.name: topic for topic in topics}

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    @property
    def closed(self) -> frozenset[str]:
        """Topics that are written by their leaders, and never by Produce."""
        return frozenset(name for name, topic in self._topics.items() if topic.is_closed)

    @property
    def written_by_members(self) -> frozenset[str]:
        """Topics whose leaders take Produce from members of the cluster only."""
        return frozenset(self._topics) - self.closed

    def __getitem__(self, name: str) -> InternalTopic:
        return self._topics[name]


class CreationPlan:
    """One broker's patience with one topic that takes fewer replicas; asked once per round.

    * It gets as many replicas as it shall have as soon as so many brokers are alive. With fewer, a
      broker waits :data:`PATIENCE_ROUNDS` rounds for more to come, then takes as many as there are.
    * Where the controller finds too few brokers that can take replicas, one fewer is asked for.
    """

    def __init__(self, *, replication_factor: int, patience_rounds: int = PATIENCE_ROUNDS) -> None:
        self._wanted = replication_factor
        self._patience_rounds = patience_rounds
        self._rounds_missing = 0
        #: Brokers that are alive and take no replicas, as far as refusals show.
        self._useless = 0

    def there(self) -> None:
        """The topic exists."""
        self._rounds_missing = self._useless = 0

    def missing(self, alive_brokers: int) -> int | None:
        """It does not: with how many replicas to ask for it now; None: not yet."""
        self._rounds_missing += 1
        possible = min(self._wanted, max(1, alive_brokers - self._useless))
        if possible < self._wanted and self._rounds_missing <= self._patience_rounds:
            return None
        return possible

    def refused(self) -> None:
        """Too few brokers can take replicas for what :meth:`missing` said last."""
        self._useless += 1
