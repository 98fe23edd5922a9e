"""Tests of transactions: consume-transform-produce with each client, and fencing with Kafka's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import ROOT
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS, committed, committed_numbers
from tests.clients.programs import Client

RECORDS = 600
#: Records that each client copies.
COPIED = 300


@pytest.fixture(params=[2, 1])
def level(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[int]:
    """The level of ``transaction.version`` in the test. Afterwards it is 2 again, the default."""
    set_level(cluster, request.param)
    yield request.param
    set_level(cluster, 2)


def set_level(cluster: LocalCluster, level: int) -> None:
    tool = [str(ROOT / "bin/kraftjbod-features")]
    server = ["--bootstrap-server", cluster.bootstrap_servers]
    described = subprocess.run([*tool, *server, "describe"], capture_output=True, check=True)
    (line,) = [each for each in described.stdout.splitlines() if b"transaction.version" in each]
    if f"FinalizedVersionLevel: {level}".encode() in line:
        return
    verb = "upgrade" if level == 2 else "downgrade"
    subprocess.run([*tool, *server, verb, "--feature", f"transaction.version={level}"], check=True)


@pytest.mark.scenario("transacts")
def test_transactional_copy_commits_each_record_once(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    if "copy" in client.lacks:
        pytest.skip(f"{client} has {client.lacks['copy']}")
    source, copy = f"source-{client}", f"copy-{client}"
    for topic in (source, copy):
        cluster.create_topic(topic, partitions=PARTITIONS)
    sender = start("produce", source, 0, COPIED, 20)
    copier = start("copy", source, copy, copy, COPIED)
    sender.wait()
    copier.wait()
    assert copier.values("aborted")
    assert sum(copier.values("committed")) == COPIED
    assert sorted(committed_numbers(cluster, copy, COPIED)) == list(range(COPIED))
    assert committed(cluster, copy, at_least=COPIED) == COPIED


@pytest.mark.trial("kafka-clients (Java)", "transactions")
def test_transactional_copy_at_each_version_is_exact_and_fences_zombie(
    cluster: LocalCluster, run_java: Callable[..., Start], level: int
) -> None:
    run = run_java("Client")
    source, copy = f"source-{level}", f"copy-{level}"
    for topic in (source, copy):
        cluster.create_topic(topic, partitions=PARTITIONS)
    sender = run("produce", source, 0, RECORDS, 20)
    copier = run("copy", source, copy, copy, RECORDS)
    sender.wait()
    copier.wait()
    assert copier.values("aborted")
    assert sum(copier.values("committed")) == RECORDS
    assert committed(cluster, copy) == RECORDS
    reader = run("committed", copy, RECORDS)
    reader.wait()
    assert sorted(reader.numbers) == list(range(RECORDS))
    # A read_uncommitted reader gets the aborted records, too.
    everything = run("read", copy, RECORDS + sum(copier.values("aborted")))
    everything.wait()
    assert set(everything.numbers) == set(range(RECORDS))
    zombie = run("fence", copy, copy)
    zombie.wait()
    assert (zombie.values("fenced"), zombie.values("ended")) == ([True], [True])
    reader = run("committed", copy, RECORDS + 1)
    reader.wait()
    assert -1 not in reader.numbers
