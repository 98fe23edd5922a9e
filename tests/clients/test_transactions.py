"""What a producer of Kafka's own reads and writes is one thing, and its predecessor is fenced."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import ROOT
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS, committed

RECORDS = 600


@pytest.fixture(params=[2, 1])
def level(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[int]:
    """Of ``transaction.version``; afterwards it is 2 again, as a new cluster's."""
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


@pytest.mark.trial("kafka-clients (Java)", "transactions")
def test_a_copy_is_exact_and_a_zombie_fenced(
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
    assert copier.told("aborted")
    assert sum(copier.told("committed")) == RECORDS
    assert committed(cluster, copy) == RECORDS
    reader = run("committed", copy, RECORDS)
    reader.wait()
    assert sorted(reader.numbers) == list(range(RECORDS))
    # What was aborted is there, for who reads everything.
    everything = run("read", copy, RECORDS + sum(copier.told("aborted")))
    everything.wait()
    assert set(everything.numbers) == set(range(RECORDS))
    zombie = run("fence", copy, copy)
    zombie.wait()
    assert (zombie.told("fenced"), zombie.told("ended")) == ([True], [True])
    reader = run("committed", copy, RECORDS + 1)
    reader.wait()
    assert -1 not in reader.numbers
