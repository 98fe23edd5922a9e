"""PURE. Definitions of the internal topics of the cluster: names, settings and records.

Clients see these topics as internal (Kafka's ``is_internal``). Brokers create them, not the first
client that names one, and write and read them through internal_producer.py and internal_reader.py.
The settings come from the broker's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.rpc_messages import CreateTopicsRequestRpc, NewTopic

PATIENCE_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """An internal topic with the settings for its creation."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    takes_fewer_replicas: bool
    """If too few brokers are alive, it is created after a wait with as many replicas as
    possible; otherwise it is not created until there are enough."""
    is_closed: bool
    """Leaders keep its contents in memory and write it themselves, so Produce is refused.
    Otherwise only members of the cluster may use Produce."""
    schema: str
    """The module that defines, encodes and decodes its records."""

    def creation(self, replication_factor: int | None = None) -> CreateTopicsRequestRpc:
        """Return the CreateTopics request.

        :param replication_factor: the full number of replicas by default.
        """
        topic = NewTopic(
            name=self.name,
            num_partitions=self.num_partitions,
            replication_factor=replication_factor or self.replication_factor,
            configs=dict(self.configs),
        )
        return CreateTopicsRequestRpc(topics=(topic,))


class InternalTopics:
    """The internal topics of the cluster by name, such as ``__consumer_offsets``, with the sets of
    those that restrict Produce.
    """

    def __init__(self, topics: Iterable[InternalTopic] = ()) -> None:
        self._topics = {topic.name: topic for topic in topics}

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    @property
    def closed(self) -> frozenset[str]:
        """Topics that refuse Produce, because only their leaders write them."""
        return frozenset(name for name, topic in self._topics.items() if topic.is_closed)

    @property
    def written_by_members(self) -> frozenset[str]:
        """Topics for which Produce is accepted from members of the cluster only."""
        return frozenset(self._topics) - self.closed

    def __getitem__(self, name: str) -> InternalTopic:
        return self._topics[name]


class CreationPlan:
    """Decides with how many replicas a topic that accepts fewer is created.

    Call :meth:`missing` once per round.

    * The topic gets its full replication factor as soon as enough brokers are alive. Otherwise the
      broker waits :data:`PATIENCE_ROUNDS` rounds, and then uses as many replicas as there are
      brokers.
    * If the controller finds too few usable brokers, the next request asks for one replica less.
    """

    def __init__(self, *, replication_factor: int, patience_rounds: int = PATIENCE_ROUNDS) -> None:
        self._wanted = replication_factor
        self._patience_rounds = patience_rounds
        self._rounds_missing = 0
        #: Live brokers that cannot have replicas, according to refusals.
        self._useless = 0

    def note_present(self) -> None:
        """Note that the topic exists, and forget the rounds and refusals counted so far."""
        self._rounds_missing = self._useless = 0

    def missing(self, alive_brokers: int) -> int | None:
        """Count a round in which the topic is missing. Return the replication factor to request
        for it; None to wait."""
        self._rounds_missing += 1
        possible = min(self._wanted, max(1, alive_brokers - self._useless))
        if possible < self._wanted and self._rounds_missing <= self._patience_rounds:
            return None
        return possible

    def refused(self) -> None:
        """Note that the controller found too few usable brokers for the replication factor that
        :meth:`missing` returned. Later calls of :meth:`missing` count one broker less.
        """
        self._useless += 1
