"""Whole daemons under virtual time: the same seed gives the same story, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.simulated_cluster import SimulationTimeoutError
from tests.sim.search.cluster_view import ClusterView

_ROOT = Path(__file__).parents[2]


# A search run with all optional parts besides the plain load; prints the hash of its trace.
_RUN = """
from tests.sim.search.applications.chosen import Kind
from tests.sim.search.seed_run import run_seed
print(run_seed(1, duration_ms=3_000, applications=frozenset(Kind), is_light=True).trace_hash)
"""


def _output(hash_seed: str, *arguments: str) -> str:
    """Return the output of a separate process, in which sets of strings have another order."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_same_seed_gives_same_trace_in_every_process() -> None:
    story = "-m", "tests.sim.story"
    output = _output("1", *story, "7")
    assert output == _output("3", *story, "7")
    assert output != _output("1", *story, "8")
    assert _output("1", "-c", _RUN) == _output("3", "-c", _RUN)


def test_simulated_cluster_starts_dies_and_can_be_inspected() -> None:
    with SimulatedCluster(seed=1, brokers=1, log_dirs=2) as cluster:
        cluster.start()
        broker, controller = cluster.broker(1), cluster.controller()
        assert broker.wiring is not None
        assert controller.state is not None
        assert [path for path in cluster.disks if "d" in path.rpartition("/")[2]] == [
            "/broker-1/d0",
            "/broker-1/d1",
        ]
        assert list(controller.state.brokers) == [1]
        broker.kill()
        assert broker.wiring is None
        began_ms = cluster.now_ms
        with pytest.raises(SimulationTimeoutError, match="not within 500 ms: it is back"):
            cluster.wait_for(lambda: broker.is_up, "it is back", timeout_ms=500)
        assert cluster.now_ms == began_ms + 500
        broker.start()
        cluster.wait_for(lambda: broker.is_serving, "it serves")
        broker.stop()
        cluster.wait_for(lambda: not broker.is_up, "it has stopped")
        assert broker.exit_code == 0
    with pytest.raises(ConfigError, match="1, 3 or 5 can agree"):
        SimulatedCluster(seed=1, controllers=2)


def test_simulated_controller_after_a_power_cut_follows_another_with_a_drifting_clock() -> None:
    with SimulatedCluster(seed=1, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        first = next(host for host in cluster.controllers if host.is_active)
        first.power_cut()
        others = [host for host in cluster.controllers if host is not first]
        cluster.wait_for(lambda: any(host.is_active for host in others), "another one leads")
        first.drift(2.0)
        first.start()
        began_ms = cluster.now_ms
        assert first.process is not None
        own_s = first.process.loop.time()
        cluster.wait_for(lambda: first.state is not None and 1 in first.state.brokers, "it follows")
        cluster.run_for(10_000)
        own_ms = round((first.process.loop.time() - own_s) * 1000)
        assert own_ms == 2 * (cluster.now_ms - began_ms)
        assert [host.is_active for host in cluster.controllers].count(True) == 1
        assert not first.is_active


def test_broker_that_may_be_fenced_starts_no_leadership() -> None:
    """A broker that is cut off from the controller is elected leader, and then fenced.

    Once the network is healed, it receives the election, which was in flight all the time, and no
    controller runs to send more."""
    tp = TopicPartition("t", 0)
    config = {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "1000",
        "leader.imbalance.check.interval.seconds": "1",
    }
    with SimulatedCluster(seed=1, log_dirs=1, config=config) as cluster:
        cluster.start()
        alice, view = cluster.client("alice"), ClusterView(cluster)
        alice.run(create_topic(alice.kafka, "t", assignment={0: [1, 2, 3]}))

        def decided() -> PartitionRegistration:
            state = view.decided()
            topic = None if state is None else state.topic("t")
            assert topic is not None
            return topic.partitions[0]

        def is_led_here() -> bool:
            replica = view.replica(1, tp)
            return (
                replica is not None
                and replica.partition is not None
                and replica.partition.is_leader
            )

        first = cluster.broker(1)
        first.stop()
        cluster.wait_for(lambda: not first.is_up, "it has stopped")
        first.start()
        cluster.wait_for(lambda: len(decided().isr) == 3, "all are in sync", timeout_ms=30_000)
        assert decided().leader == 2
        cluster.network.partition("broker-1", "controller-100")
        cluster.wait_for(lambda: decided().leader == 1, "it is preferred", timeout_ms=9_000)
        cluster.wait_for(lambda: decided().leader == 2, "it is fenced", timeout_ms=30_000)
        cluster.controller().kill()
        cluster.network.heal()
        for _ in range(100):
            cluster.run_for(10)
            assert not is_led_here()
        cluster.controller().start()
        cluster.wait_for(lambda: view.decided() is not None, "it is back")
        cluster.wait_for(lambda: len(decided().isr) == 3, "all are in sync", timeout_ms=30_000)


def test_broker_reconnects_when_its_only_controller_lost_the_connections() -> None:
    """The broker's connections stay open, and its bytes are lost without a response."""
    with SimulatedCluster(5) as cluster:
        cluster.start()
        cluster.network.break_one_side("controller-100", "broker-2")
        cluster.run_for(30_000)
        state = cluster.controller().state
        assert state is not None and not state.brokers[BrokerId(2)].fenced
