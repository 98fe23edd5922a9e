"""The tour's disk failure and its timeline."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.load.acknowledgements import Ack, Acknowledgements, Gap
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour import disk_death
from kraftjbod.tour.disk_death import Death
from kraftjbod.tour.source_lines import LineStream, SourceLine
from tests.unit.cli.mini_broker import BROKER_ID, mini_broker

VICTIM = Victim(broker_id=1, path=Path("/d"), led=frozenset({0}), replicas=1)


def load_with_acks(*instants: float) -> Acknowledgements:
    load = Acknowledgements(0, LineStream([SourceLine(place="f:1", text=b"")]))
    load.acks = [Ack(at_s=at, offset=0, count=1) for at in instants]
    return load


def test_kill_disk_and_restore_disk_restore_the_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    death = disk_death.kill_disk(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0
    disk_death.restore_disk(tmp_path, death)
    assert tmp_path.stat().st_mode & 0o777 == 0o750


async def test_wait_for_new_leaders_detects_moved_leaders() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        assert await disk_death.wait_for_new_leaders(client, "t", VICTIM, timeout_s=20)
        stays = Victim(broker_id=BROKER_ID, path=Path("/d"), led=frozenset({0}), replicas=1)
        assert not await disk_death.wait_for_new_leaders(client, "t", stays, timeout_s=0.01)


async def test_wait_clients_back_requires_acknowledgements_of_each_client() -> None:
    back = disk_death.wait_clients_back
    assert await back([load_with_acks(1.0, 3.0)], VICTIM, 2.0, timeout_s=20)
    assert not await back([load_with_acks(1.0)], VICTIM, 2.0, timeout_s=0.01)


def test_timeline_joins_times_of_three_clocks(tmp_path: Path) -> None:
    broker = ClusterProcesses.create(tmp_path, brokers=1).brokers[1]
    death = Death(at_s=time.monotonic(), wall_s=time.time(), mode=0o755)

    def logged(event: str, after_s: float, directory_id: str) -> str:
        at = datetime.fromtimestamp(death.wall_s + after_s, UTC)
        words = {"event": event, "timestamp": at.isoformat(), "directory_id": directory_id}
        return json.dumps(words) + "\n"

    broker.files.telemetry_path.write_text(
        logged("log_dir_offline", -9.0, "mine")
        + logged("log_dir_offline", 0.1, "other")
        + logged("log_dir_offline", 0.25, "mine")
    )
    gaps = {0: Gap(death.at_s, death.at_s + 0.5)}
    milestones = disk_death.timeline_of(death, broker, "mine", death.at_s + 0.4, gaps, VICTIM)
    assert [m.after_ms for m in milestones] == [0, 250, None, 400, 500]


def test_gaps_around_the_failure_are_found() -> None:
    load = load_with_acks(0.0, 50.0, 100.1, 100.9, 101.0)
    death = Death(at_s=100.0, wall_s=0.0, mode=0)
    assert disk_death.gaps_around([load], death)[0] == Gap(50.0, 100.1)
    later = load_with_acks(99.9, 100.0, 100.2, 101.0, 109.0)
    assert disk_death.gaps_around([later], death, until_s=100.5)[0] == Gap(100.2, 101.0)
