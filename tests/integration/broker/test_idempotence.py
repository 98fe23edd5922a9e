"""Retries of idempotent producers: a batch is stored once despite failures in between."""

from __future__ import annotations

import itertools

import pytest

from tests.integration import clients, raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
CORRUPT_MESSAGE = 2
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=2,
        dirs=1,
        config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with two replicas, led by broker 1."""
    name = f"idempotent-{next(_numbers)}"
    cluster.create_topic(name, assignments={0: [1, 2]})
    return name


def _address(cluster: Cluster, topic: str) -> str:
    return cluster.brokers[cluster.partitions(topic)[0].leader].address


def test_init_producer_id_returns_unique_ids(cluster: Cluster) -> None:
    ids = [raw.producer_id(broker.address) for broker in cluster.brokers.values() for _ in range(5)]
    assert len({id_ for id_, _ in ids}) == 10
    assert {epoch for _, epoch in ids} == {0}


def test_repeated_batch_returns_its_first_offset(cluster: Cluster, topic: str) -> None:
    address = _address(cluster, topic)
    id_, epoch = raw.producer_id(address)
    batches = [
        raw.batch([b"%d" % n] * 3, producer_id=id_, epoch=epoch, sequence=3 * n) for n in range(5)
    ]
    assert [raw.produce(address, topic, one) for one in batches] == [(0, 3 * n) for n in range(5)]
    assert [raw.produce(address, topic, one) for one in batches] == [(0, 3 * n) for n in range(5)]
    assert len(clients.read_confluent(cluster.bootstrap, topic, 100)) == 15


def test_gap_in_sequence_is_refused(cluster: Cluster, topic: str) -> None:
    address = _address(cluster, topic)
    id_, epoch = raw.producer_id(address)
    first = raw.batch([b"0"], producer_id=id_, epoch=epoch, sequence=0)
    third = raw.batch([b"2"], producer_id=id_, epoch=epoch, sequence=2)
    assert raw.produce(address, topic, first) == (0, 0)
    assert raw.produce(address, topic, third)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_older_producer_epoch_is_refused(cluster: Cluster, topic: str) -> None:
    address = _address(cluster, topic)
    id_, _ = raw.producer_id(address)
    newer = raw.batch([b"new"], producer_id=id_, epoch=3, sequence=0)
    older = raw.batch([b"old"], producer_id=id_, epoch=2, sequence=1)
    assert raw.produce(address, topic, newer) == (0, 0)
    assert raw.produce(address, topic, older)[0] == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("how", ["orderly", "kill"])
def test_producer_state_survives_restart(cluster: Cluster, topic: str, how: str) -> None:
    """It comes from the snapshot after an orderly stop, and from the log itself after a kill.

    It covers all batches that a client keeps in flight, not just the last one."""
    address = _address(cluster, topic)
    id_, epoch = raw.producer_id(address)
    five = [raw.batch([b"once"], producer_id=id_, epoch=epoch, sequence=n) for n in range(5)]
    assert [raw.produce(address, topic, one) for one in five] == [(0, n) for n in range(5)]
    daemon = cluster.brokers[1]
    if how == "kill":
        daemon.kill()
    else:
        cluster.stop_daemon(daemon)
    cluster.start_daemon(daemon)
    cluster.wait_whole(topic)
    address = _address(cluster, topic)
    assert [raw.produce(address, topic, one) for one in five] == [(0, n) for n in range(5)]
    assert clients.read_confluent(cluster.bootstrap, topic, 10) == [b"once"] * 5


def test_new_leader_knows_producer_state(cluster: Cluster, topic: str) -> None:
    """Followers learn sequences from the batches that they replicate."""
    first = _address(cluster, topic)
    id_, epoch = raw.producer_id(first)
    one = raw.batch([b"once"], producer_id=id_, epoch=epoch, sequence=0)
    assert raw.produce(first, topic, one) == (0, 0)
    daemon = cluster.brokers[1]
    cluster.stop_daemon(daemon)
    second = cluster.brokers[2].address
    cluster.wait("broker 2 to lead", lambda: cluster.partitions(topic, ask=2)[0].leader == 2)
    assert raw.produce(second, topic, one) == (0, 0)
    cluster.start_daemon(daemon)
    cluster.wait_whole(topic)


def test_batch_with_wrong_crc_is_refused(cluster: Cluster, topic: str) -> None:
    wrong = bytearray(raw.batch([b"value"]))
    wrong[-1] ^= 1
    assert raw.produce(_address(cluster, topic), topic, bytes(wrong))[0] == CORRUPT_MESSAGE
