"""PURE. ``TopicRules``: what a topic's configuration and the cluster's features decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kraftjbod.core.ids import TopicId
from kraftjbod.metadata.state import MetadataState


class TopicRules(NamedTuple):
    may_elect_unclean: bool
    """``unclean.leader.election.enable``"""
    min_isr: int
    """``min.insync.replicas``, whatever the number of replicas is."""
    has_elr: bool
    """Whether partitions have eligible leader replicas (KIP-966)."""


RulesOf = Callable[[str], TopicRules]
"""By the topic's name."""


def rules_by_topic(state: MetadataState, rules_of: RulesOf) -> Callable[[TopicId], TopicRules]:
    """By the topic's id, looked up once per topic; for one decision."""
    known: dict[TopicId, TopicRules] = {}

    def rules(topic_id: TopicId) -> TopicRules:
        if topic_id not in known:
            known[topic_id] = rules_of(state.topics[topic_id].name)
        return known[topic_id]

    return rules
