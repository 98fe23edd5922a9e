"""``kill -9`` of each daemon under load, and orderly stops: no acknowledged record is lost."""

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
    """Sessions are so long that no test can wait for their end.

    Closed connections show that a broker is dead, and its next incarnation need not wait."""
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
def test_killed_broker_under_load_loses_no_acknowledged_record(
    cluster: Cluster, topic: str, victim: int
) -> None:
    daemon = cluster.brokers[victim]
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        daemon.kill()
        before = load.acked_by_partition()
        cluster.wait(
            "progress in every partition", lambda: load.flowed_since(before), explain=load.explain
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
    assert victim in {event["broker_id"] for event in gone}, "found by its closed connection"
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_killed_controller_under_load_loses_no_record_and_decides_again(
    cluster: Cluster, topic: str
) -> None:
    """The load continues without the controller, and earlier decisions are known afterwards."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.local.controller.kill()
        before = load.acked_by_partition()
        cluster.wait(
            "progress in every partition", lambda: load.flowed_since(before), explain=load.explain
        )
        cluster.start_daemon(cluster.local.controller)
        after = f"{topic}-after"
        cluster.wait("the controller to decide again", lambda: _creates(cluster, after))
        load.stop()
    load.print_gaps("controller killed")
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_kill_of_all_daemons_loses_no_acknowledged_record(cluster: Cluster, topic: str) -> None:
    """All acknowledged records are in page caches, which a kill -9 does not affect."""
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.local.kill()
        cluster.start()
        before = load.acked_by_partition()
        cluster.wait(
            "progress in every partition", lambda: load.flowed_since(before), explain=load.explain
        )
        load.stop()
    cluster.wait_whole(topic)
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_orderly_restart_of_all_daemons_keeps_all_records(cluster: Cluster, topic: str) -> None:
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


def test_controlled_shutdown_moves_leaders_and_writes_clean_shutdown_files(
    cluster: Cluster, topic: str
) -> None:
    """The leaders move while the broker still runs, and it writes a clean shutdown file."""
    daemon = cluster.brokers[2]
    with Load(cluster.bootstrap, topic, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.stop_daemon(daemon)
        assert daemon.exit_code == 0
        assert _leaders(cluster, topic, ask=1) <= {1, 3}
        assert all(os.path.exists(cluster.local.dir_path(2, n) / CLEAN_MARK) for n in (1, 2))
        before = load.acked_by_partition()
        cluster.wait(
            "progress in every partition", lambda: load.flowed_since(before), explain=load.explain
        )
        cluster.start_daemon(daemon)
        cluster.wait_whole(topic)
        load.stop()
    load.print_gaps("broker 2 stopped in order")
    assert judge(cluster.bootstrap, topic, load).findings == []


def test_two_killed_of_three_brokers_stop_acknowledgements_until_return(
    cluster: Cluster, topic: str
) -> None:
    """Below min.insync.replicas no record is acknowledged; all partitions continue afterwards."""
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
            "progress in every partition", lambda: load.flowed_since(before), explain=load.explain
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
