"""``kill -9`` of each daemon under load, and orderly stops: nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os

import pytest
from kafka.errors import KafkaError

from tests.integration import raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

PARTITIONS = 6
CLEAN_MARK = ".kafka_cleanshutdown"
NOT_ENOUGH_REPLICAS = 19
MARK = b"refused"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    """Sessions so long that no test can wait for their end: the dead are known by their closed
    connections, and their next incarnations need not wait."""
    return make_shared_cluster(
        brokers=3,
        dirs=2,
        config={"broker.session.timeout.ms": "600000"},
    )


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"kill-{next(_numbers)}"
    cluster.create_topic(name, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    return name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_broker_is_killed_under_load(cluster: Cluster, topic: str, victim: int) -> None:
    daemon = cluster.brokers[victim]
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        daemon.kill()
        before = load.acked_by_partition()
        cluster.wait(
            "every partition to go on", lambda: load.flowed_since(before), explain=load.explain
        )
        for other in cluster.brokers.keys() - {victim}:
            cluster.wait(
                f"broker {other} to know of new leaders",
                lambda other=other: victim not in _leaders(cluster, topic, ask=other),
            )
        cluster.start_daemon(daemon)
        cluster.wait_whole(topic)
        load.stop()
    load.print_gaps(f"broker {victim} killed")
    gone = cluster.local.controller.events("broker_gone")
    assert victim in {event["broker_id"] for event in gone}, "not by its session"
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_the_controller_is_killed_under_load(cluster: Cluster, topic: str) -> None:
    """The load does not notice; and what was decided before is still known afterwards."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.local.controller.kill()
        before = load.acked_by_partition()
        cluster.wait(
            "every partition to go on", lambda: load.flowed_since(before), explain=load.explain
        )
        cluster.start_daemon(cluster.local.controller)
        after = f"{topic}-after"
        cluster.wait("the controller to decide again", lambda: _creates(cluster, after))
        load.stop()
    load.print_gaps("controller killed")
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_everything_is_killed_at_once(cluster: Cluster, topic: str) -> None:
    """All acknowledged records are in all page caches; a kill -9 takes none of them."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.local.kill()
        cluster.start()
        before = load.acked_by_partition()
        cluster.wait(
            "every partition to go on", lambda: load.flowed_since(before), explain=load.explain
        )
        load.stop()
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_an_orderly_restart_of_everything_finds_all_data(cluster: Cluster, topic: str) -> None:
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        load.stop()
    before = {(id_, n): cluster.local.dir_path(id_, n) for id_ in cluster.brokers for n in (1, 2)}
    cluster.stop()
    marks = [os.path.exists(path / CLEAN_MARK) for path in before.values()]
    assert all(marks), "every directory was closed in order"
    cluster.start()
    assert not any(os.path.exists(path / CLEAN_MARK) for path in before.values())
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_a_broker_that_is_asked_to_stop_hands_over_first(cluster: Cluster, topic: str) -> None:
    """Controlled shutdown: its leaders move while it lives, and it leaves a clean mark."""
    daemon = cluster.brokers[2]
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.stop_daemon(daemon)
        assert daemon.exit_code == 0
        assert _leaders(cluster, topic, ask=1) <= {1, 3}
        assert all(os.path.exists(cluster.local.dir_path(2, n) / CLEAN_MARK) for n in (1, 2))
        before = load.acked_by_partition()
        cluster.wait(
            "every partition to go on", lambda: load.flowed_since(before), explain=load.explain
        )
        cluster.start_daemon(daemon)
        cluster.wait_whole(topic)
        load.stop()
    load.print_gaps("broker 2 stopped in order")
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_two_of_three_are_killed_and_nobody_acknowledges(cluster: Cluster, topic: str) -> None:
    """Below min.insync.replicas nothing is acknowledged; all of it goes on afterwards."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.brokers[1].kill()
        cluster.brokers[3].kill()
        cluster.wait("broker 2 to be alone in every ISR", lambda: _alone(cluster, topic, 2))
        alone = cluster.brokers[2].address
        assert raw.produce(alone, topic, raw.batch([MARK]))[0] == NOT_ENOUGH_REPLICAS
        before = load.acked_by_partition()
        cluster.brokers[1].start()
        cluster.brokers[3].start()
        cluster.wait_healthy()
        cluster.wait(
            "every partition to go on", lambda: load.flowed_since(before), explain=load.explain
        )
        load.stop()
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def _leaders(cluster: Cluster, topic: str, *, ask: int) -> set[int]:
    return {part.leader for part in cluster.partitions(topic, ask=ask).values()}


def _alone(cluster: Cluster, topic: str, broker: int) -> bool:
    parts = cluster.partitions(topic, ask=broker).values()
    return all(part.isr == (broker,) and part.leader == broker for part in parts)


def _creates(cluster: Cluster, name: str) -> bool:
    try:
        cluster.create_topic(name, replication_factor=3)
    except KafkaError:
        return False
    return True
