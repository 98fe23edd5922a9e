"""Whole daemons under virtual time: the same seed is the same story, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kraftjbod.core.errors import ConfigError
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.simulated_cluster import SimulationTimeoutError

_ROOT = Path(__file__).parents[2]


#: A search's run with everything that it may play beside the plain load; prints its trace's hash.
_RUN = """
from kraftjbod.testing.simulation.search.applications.chosen import Kind
from kraftjbod.testing.simulation.search.seed_run import run_seed
print(run_seed(1, duration_ms=3_000, applications=frozenset(Kind), is_light=True).trace_hash)
"""


def _told(hash_seed: str, *arguments: str) -> str:
    """In a process of its own, where sets of words are in another order."""
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


def test_the_same_seed_is_the_same_trace_in_every_process() -> None:
    story = "-m", "tests.sim.story"
    told = _told("1", *story, "7")
    assert told == _told("3", *story, "7")
    assert told != _told("1", *story, "8")
    assert _told("1", "-c", _RUN) == _told("3", "-c", _RUN)


def test_a_cluster_starts_dies_and_is_looked_into() -> None:
    with SimulatedCluster(seed=1, brokers=1, log_dirs=2) as cluster:
        cluster.start()
        broker, controller = cluster.broker(1), cluster.controller()
        assert broker.rooms is not None
        assert controller.state is not None
        assert [path for path in cluster.disks if "d" in path.rpartition("/")[2]] == [
            "/broker-1/d0",
            "/broker-1/d1",
        ]
        assert list(controller.state.brokers) == [1]
        broker.kill()
        assert broker.rooms is None
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


def test_of_three_controllers_any_one_may_go_and_its_clock_may_be_wrong() -> None:
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
