"""PURE. ``TopicRules``: the rules of a topic from its configuration and the cluster's features."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kraftjbod.core.ids import TopicId
from kraftjbod.metadata.state import MetadataState


class TopicRules(NamedTuple):
    may_elect_unclean: bool
    """``unclean.leader.election.enable``"""
    min_isr: int
    """``min.insync.replicas``, which may exceed the number of replicas."""
    has_elr: bool
    """Whether partitions have eligible leader replicas (KIP-966)."""


RulesOf = Callable[[str], TopicRules]
"""Return the rules of a topic by its name."""


def rules_by_topic(state: MetadataState, rules_of: RulesOf) -> Callable[[TopicId], TopicRules]:
    """Return a function that returns the rules of a topic id and caches them.

    Use it for one decision only.
    """
    known: dict[TopicId, TopicRules] = {}

    def rules(topic_id: TopicId) -> TopicRules:
        if topic_id not in known:
            known[topic_id] = rules_of(state.topics[topic_id].name)
        return known[topic_id]

    return rules
