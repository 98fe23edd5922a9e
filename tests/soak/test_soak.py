"""Tests of the soak: its plan and its checks, and two minutes of faults on a real cluster."""

from __future__ import annotations

import itertools

import psutil
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kraftjbod.testing import log_disks
from kraftjbod.testing.local_cluster import LocalCluster
from tests.soak.committed_reader import CommittedRecord
from tests.soak.copiers import compare
from tests.soak.large_logs import NO_OFFSET, Struck, require_answered, unexplained_states
from tests.soak.plan import HANG, KINDS, UNCLEAN, Round, plan
from tests.soak.soak import disk_bytes, soak

SECONDS = 120.0


def _costly(strikes: Round) -> set[int]:
    """Return the brokers that may lose records in a round."""
    return {
        strike.broker
        for strike in strikes
        if strike.kind in UNCLEAN and not (strike.kind is HANG and strike.for_s <= 6.0)
    }


def test_soak_plan_has_all_kinds_and_at_most_one_unclean_broker_per_round() -> None:
    for seed in range(50):
        rounds = list(itertools.islice(plan(seed, brokers=3, dirs=2), 2 * len(KINDS)))
        assert all(len(_costly(strikes)) <= 1 for strikes in rounds), seed
        assert {strike.kind for strikes in rounds for strike in strikes} == set(KINDS)
        assert rounds == list(itertools.islice(plan(seed, brokers=3, dirs=2), 2 * len(KINDS)))


def test_compare_copies_finds_lost_repeated_and_uncommitted_records() -> None:
    expected = [CommittedRecord(0, offset, b"v %d" % offset) for offset in (3, 4, 6)]
    copies = [CommittedRecord(1, at, b"%d %d %s" % one) for at, one in enumerate(expected)]
    assert compare(expected, copies) == []
    assert compare(expected, copies[1:]) == ["(0, 3) is not copied: b'v 3'"]
    assert compare(expected, [*copies, copies[1]]) == ["(0, 4) is copied again, or after 6: b'v 4'"]
    assert compare(expected[:2], copies) == ["(0, 6) is copied and was never committed: b'v 6'"]


def test_soak_disk_holds_all_large_logs_of_its_broker() -> None:
    """A broker has a third of 20 GB, which fits on one disk while the other one is replaced."""
    assert disk_bytes(3600, 20) > 1.2 * 20e9 / 3 + disk_bytes(3600, 0)


def test_unexplained_states_excludes_those_during_faults_of_the_broker() -> None:
    def stalled(at_s: int) -> dict[str, str]:
        return {"event": "log_dir_stalled", "timestamp": f"2026-11-26T00:00:{at_s:02}Z"}

    midnight_s = 1_795_651_200.0
    struck = [Struck(frozenset({2}), midnight_s + 10, midnight_s + 20)]
    other = {"event": "log_dir_answers_again", "timestamp": "2026-11-26T00:00:30Z"}
    events = {1: [stalled(15)], 2: [stalled(9), stalled(10), stalled(25), stalled(26), other]}
    assert unexplained_states(events, struck) == [
        f"log_dir_stalled without a strike: {stalled(at_s)}" for at_s in (15, 9, 26)
    ]


@pytest.mark.process
@pytest.mark.clients
def test_require_answered_refuses_the_result_of_a_request_that_no_broker_answered() -> None:
    """Otherwise a killed broker looks like a broker that answers without an offset.

    A broker's own answer that no record matches is accepted.
    """
    with LocalCluster(brokers=1, dirs=1) as cluster:
        cluster.create_topic("t", partitions=1, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

        def listed_offset(spec: OffsetSpec) -> int:
            asked = TopicPartition("t", 0)
            return require_answered(
                admin.list_offsets({asked: spec}, request_timeout=3)[asked].result().offset
            )

        assert listed_offset(OffsetSpec.earliest()) == 0
        assert listed_offset(OffsetSpec.max_timestamp()) == NO_OFFSET
        broker = psutil.Process(cluster.broker(1).process.pid)
        broker.suspend()
        try:
            with pytest.raises(KafkaException, match="did not answer"):
                listed_offset(OffsetSpec.earliest())
        finally:
            broker.resume()


@pytest.mark.process
@pytest.mark.disk
@pytest.mark.clients
@pytest.mark.timeout(900)
def test_soak_with_random_faults_loses_no_acknowledged_record() -> None:
    reason = log_disks.why_not("ext4")
    if reason is not None:
        pytest.skip(f"no disks that lose unflushed data: {reason}")
    report = soak(20261122, SECONDS)
    print("\n".join(report.lines()))
    assert report.findings == []
    assert report.rounds > 0 and report.acked > 0 and report.commits > 0
