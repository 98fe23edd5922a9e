"""What topics and subscriptions do to a group."""

from __future__ import annotations

from kraftjbod.broker.groups.records.consumer_group_records import MemberState
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.consumer.consumer_scene import (
    INTERVAL_MS,
    ConsumerScene,
)

E = ErrorCode


def test_topics_that_come_grow_and_go():
    scene = ConsumerScene()
    scene.join("a", "t", "later")
    scene.wait(INTERVAL_MS)
    scene.topics.put("t", 6)
    told = scene.beat("a", 2)
    assert (told.epoch, told.assignment) == (3, scene.topics.all("t"))
    scene.wait(INTERVAL_MS)
    scene.topics.put("other", 9)
    assert scene.beat("a", 3).epoch == 3, "nobody reads it"
    scene.topics.put("later", 1)
    told = scene.beat("a", 3)
    assert told.assignment == scene.topics.all("t") | scene.topics.all("later")
    scene.wait(INTERVAL_MS)
    scene.topics.drop("t")
    told = scene.beat("a", 4)
    assert told.assignment == scene.topics.all("later")


def test_a_regular_expression_finds_new_topics_within_seconds():
    scene = ConsumerScene()
    assert scene.join("a", topic_names=None, topic_regex="[tu]").assignment == (
        scene.topics.all("t") | scene.topics.all("u")
    )
    assert scene.join("b", topic_names=frozenset(), topic_regex="no.*").assignment == frozenset()
    scene.topics.put("tt", 1)
    scene.wait(10_000)
    scene.beat("b", scene.group.state.current("b").epoch)
    assert scene.group.state.regexes["[tu]"].topics == {"t", "u"}, "it has to match all"
    scene.topics.put("no-more", 3)
    scene.wait(10_000)
    told = scene.beat("b", scene.group.state.current("b").epoch)
    assert told.assignment == scene.topics.all("no-more")
    scene.beat("b", told.epoch, topic_regex="")
    assert "no.*" not in scene.group.state.regexes


def test_who_unsubscribes_gives_up_at_once():
    scene = ConsumerScene()
    scene.join("a", "t", "u")
    told = scene.beat("a", 2, topic_names=frozenset({"u"}))
    assert told.assignment == scene.topics.all("u")
    assert scene.group.state.current("a").state is MemberState.UNREVOKED_PARTITIONS
    assert scene.beat("a", 2, owned=told.assignment).code is E.NONE
    assert scene.group.state.current("a").revoking == {}
