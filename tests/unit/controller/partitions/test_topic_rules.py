"""``rules_by_topic``: the ``min.insync.replicas`` that decides which replicas may lead."""

from __future__ import annotations

import pytest

from kraftjbod.controller.partitions.topic_rules import rules_by_topic
from tests.golden.transcript import World

OF_ALL = "configure broker: set:min.insync.replicas"


@pytest.mark.parametrize(
    ("lines", "min_isr"),
    [
        ([], 2),
        ([f"{OF_ALL}=3"], 3),
        ([f"{OF_ALL}=1"], 1),
        (["configure topic:t set:min.insync.replicas=4"], 4),
        (["configure topic:t set:min.insync.replicas=4", f"{OF_ALL}=3"], 4),
    ],
)
def test_min_isr_is_topic_value_then_cluster_value_then_two(lines: list[str], min_isr: int) -> None:
    world = World()
    for line in ("up 1 dirs=a", "topic t replicas=1", *lines):
        list(world.run(line))
    managers = world.managers
    topic_id = world.state.topic_ids["t"]
    assert rules_by_topic(world.state, managers.rules_of)(topic_id).min_isr == min_isr
