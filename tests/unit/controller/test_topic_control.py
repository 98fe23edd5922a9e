"""Limits and duplicates within one request; tests/golden/create_topics.txt has the other
scenarios."""

from __future__ import annotations

import pytest

from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.broker.transactions.transaction_records import TRANSACTIONS_TOPIC
from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, TopicId
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import World


@pytest.fixture
def world() -> World:
    world = World()
    list(world.run("up 1 dirs=a"))
    return world


def _create(world: World, *topics: m.NewTopic) -> list[m.CreatedTopic]:
    response = world.ask(m.CreateTopicsRequestRpc(topics=topics))
    assert isinstance(response, m.CreateTopicsResponseRpc)
    return list(response.topics)


def _topic(name: str, partitions: int = 1) -> m.NewTopic:
    return m.NewTopic(name=name, num_partitions=partitions, replication_factor=1)


def test_create_topics_refuses_collisions_and_duplicates_in_one_request(world: World) -> None:
    created = _create(world, _topic("a.b"), _topic("a_b"), _topic("c"), _topic("c"))
    assert [topic.error_code for topic in created] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]


def test_create_topics_evaluates_the_directories_of_each_broker_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of ten thousand partitions is created in one event loop iteration."""
    evaluated: list[BrokerId] = []
    default_dir = ClusterControlManager.default_dir

    def counting(cluster: ClusterControlManager, broker_id: BrokerId) -> DirectoryId:
        evaluated.append(broker_id)
        return default_dir(cluster, broker_id)

    monkeypatch.setattr(ClusterControlManager, "default_dir", counting)
    (created,) = _create(world, _topic("a", 100))
    assert not created.error_code
    assert evaluated == [BrokerId(1)]


def test_repeated_create_topics_returns_topics_with_the_same_ids(world: World) -> None:
    def ask(*ids: bytes) -> list[m.CreatedTopic]:
        topics = (_topic("a", 2), _topic("b"))
        wanted = tuple(TopicId(one * 16) for one in ids)
        response = world.ask(m.CreateTopicsRequestRpc(topics=topics, topic_ids=wanted))
        assert isinstance(response, m.CreateTopicsResponseRpc)
        return list(response.topics)

    made = ask(b"x", b"y")
    assert [t.topic_id[:12] for t in made] == [b"x" * 12, b"y" * 12]
    assert ask(b"x", b"y") == made
    exists = ErrorCode.TOPIC_ALREADY_EXISTS
    assert [t.error_code for t in ask(b"y", b"x")] == [exists, exists], "ids of other topics"
    assert [t.error_code for t in ask()] == [exists, exists]
    response = world.ask(
        m.CreateTopicsRequestRpc(topics=(_topic("c"),), topic_ids=(TopicId(b"x" * 16),))
    )
    assert isinstance(response, m.CreateTopicsResponseRpc)
    (other,) = response.topics
    assert not other.error_code and other.topic_id not in {t.topic_id for t in made}
    world.ask(m.DeleteTopicsRequestRpc(topics=(m.TopicRef(topic_id=made[0].topic_id),)))
    again, still = ask(b"x", b"y")
    assert not again.error_code and still == made[1]
    assert again.topic_id != made[0].topic_id, "logs of the deleted topic stay separate"


def test_delete_topics_is_refused_when_disabled() -> None:
    managers = ControlManagers(
        cluster_id="c",
        in_file=DynamicControllerConfig(),
        random_bytes=bytes,
        draw_below=lambda _: 0,
        may_delete_topics=False,
    )
    with pytest.raises(OperatingError, match=r"delete\.topic\.enable") as refused:
        managers.decide(m.DeleteTopicsRequestRpc(topics=(m.TopicRef(name="t"),)), now_ms=0)
    assert refused.value.code is ErrorCode.TOPIC_DELETION_DISABLED


def test_create_topics_limits_partitions_of_the_whole_request(world: World) -> None:
    with pytest.raises(OperatingError) as refused:
        _create(world, _topic("a", 60), _topic("b", 60))
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert not world.state.topics


def _say_capacity(world: World, broker_id: int, max_replicas: int) -> None:
    broker = world.state.brokers[broker_id]
    world.ask(
        m.BrokerHeartbeatRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=world.state.offset,
            want_fence=False,
            want_shut_down=False,
            max_replicas=max_replicas,
        )
    )


def test_create_topics_beyond_max_replicas_of_broker_is_refused(world: World) -> None:
    """All topics of a request count together, as do the replicas that the broker has."""
    _say_capacity(world, 1, 10)
    first, second, third = _create(world, _topic("a", 6), _topic("b", 5), _topic("c", 4))
    assert [first.error_code, third.error_code] == [ErrorCode.NONE, ErrorCode.NONE]
    assert second.error_code == ErrorCode.INVALID_PARTITIONS
    assert second.error_message == (
        "Broker 1 can hold 10 replicas with the files that it may have open; it has 0 and would "
        "get 11 more. Raise its limit of open files (RLIMIT_NOFILE: ulimit -n, LimitNOFILE of a "
        "systemd unit) and restart it, or ask for fewer partitions."
    )
    grown = world.ask(m.CreatePartitionsRequestRpc(topics=(m.MorePartitions(name="a", count=7),)))
    assert isinstance(grown, m.CreatePartitionsResponseRpc)
    assert [topic.error_code for topic in grown.topics] == [ErrorCode.INVALID_PARTITIONS]
    world.ask(m.DeleteTopicsRequestRpc(topics=(m.TopicRef(topic_id=third.topic_id),)))
    (again,) = _create(world, _topic("d", 4))
    assert again.error_code == ErrorCode.NONE


def test_create_topics_without_reported_max_replicas_has_no_limit(world: World) -> None:
    _say_capacity(world, 1, -1)
    (made,) = _create(world, _topic("a", 90))
    assert made.error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", "x" * 250, "ä", "a/b"])
def test_create_topics_refuses_illegal_names(world: World, name: str) -> None:
    (created,) = _create(world, _topic(name))
    assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_create_topics_refuses_assignments_with_gaps(world: World) -> None:
    broker = next(iter(world.state.brokers))
    (created,) = _create(world, m.NewTopic(name="t", assignments={1: (broker,)}))
    assert created.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_create_partitions_refuses_topic_named_twice(world: World) -> None:
    _create(world, _topic("t"))
    more = m.MorePartitions(name="t", count=2)
    response = world.ask(m.CreatePartitionsRequestRpc(topics=(more, more)))
    assert isinstance(response, m.CreatePartitionsResponseRpc)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_REQUEST}


def test_repeated_create_partitions_refuses_too_many_assignments(world: World) -> None:
    (made,) = _create(world, _topic("t", 2))
    broker = next(iter(world.state.brokers))
    more = m.MorePartitions(name="t", count=1, topic_id=made.topic_id, assignments=((broker,),) * 3)
    response = world.ask(m.CreatePartitionsRequestRpc(topics=(more,), is_repeated=True))
    assert isinstance(response, m.CreatePartitionsResponseRpc)
    assert response.topics[0].error_code == ErrorCode.INVALID_PARTITIONS


def test_delete_topics_accepts_name_or_id_but_not_both(world: World) -> None:
    (created,) = _create(world, _topic("t"))
    both = m.TopicRef(name="t", topic_id=created.topic_id)
    unknown = m.TopicRef(topic_id=TopicId(b"x" * 16))
    by_id = m.TopicRef(topic_id=created.topic_id)
    response = world.ask(m.DeleteTopicsRequestRpc(topics=(both, unknown, by_id)))
    assert isinstance(response, m.DeleteTopicsResponseRpc)
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
    ]
    assert response.topics[2].name == "t"
    assert not world.state.topics


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_coordinator_topics_refuse_more_partitions_and_deletion(world: World, name: str) -> None:
    """The partition of a group or transactional id follows from its hash and the number of
    partitions."""
    (made,) = _create(world, _topic(name, 2))
    more = (m.MorePartitions(name=name, count=3), m.MorePartitions(name=name, count=2))
    for wanted in more:
        for validate_only in (False, True):
            grown = world.ask(
                m.CreatePartitionsRequestRpc(topics=(wanted,), validate_only=validate_only)
            )
            assert isinstance(grown, m.CreatePartitionsResponseRpc)
            assert grown.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert f"'{name}' cannot get more partitions" in (grown.topics[0].error_message or "")
    for ref in (m.TopicRef(name=name), m.TopicRef(topic_id=made.topic_id)):
        deleted = world.ask(m.DeleteTopicsRequestRpc(topics=(ref,)))
        assert isinstance(deleted, m.DeleteTopicsResponseRpc)
        assert deleted.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert f"'{name}' cannot be deleted" in (deleted.topics[0].error_message or "")
    assert len(world.state.topics[made.topic_id].partitions) == 2


def test_create_partitions_during_reassignment_uses_target_replication_factor(
    world: World,
) -> None:
    """Replicas that are being removed do not count."""
    for line in ("up 2 dirs=b", "up 3 dirs=c", "topic t replicas=1", "reassign t-0 replicas=2,3"):
        list(world.run(line))
    assert len(world.state.topic("t").partitions[0].replicas) == 3
    assert list(world.run("grow t 2"))[-1] == "reply t: NONE"
    assert len(world.state.topic("t").partitions[1].replicas) == 2
