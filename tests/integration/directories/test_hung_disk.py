"""A disk hangs under load: its directory becomes STALLED, then OFFLINE, and the others are
unaffected.

Three brokers, RF 3, ``min.insync.replicas`` 2, acks=all. The directories of :data:`BROKER` are ext4
on loop devices, one of which is frozen: writes wait in the kernel, where a signal has no effect.
Gaps between acknowledgements are printed and not asserted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import frozen
from kraftjbod.testing.mounts import Disk
from tests.integration.checker import Load, judge
from tests.integration.cluster import KAFKA_STORAGE_ERROR, WAIT_S, Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.live_consumer import LiveConsumer

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.disk,
    pytest.mark.timeout(300),
    pytest.mark.skipif(mounts.why_not("ext4") is not None, reason=str(mounts.why_not("ext4"))),
]

BROKER = 2
PARTITIONS = 12
TOPIC = "wanted"
ALONE = "alone"
DISK_BYTES = 256 * 1024 * 1024
# Timeout of the thaw timer; longer than any test keeps a disk frozen.
AT_MOST_S = 100.0
IMPATIENT = {"log.dir.io.suspect.ms": "500", "log.dir.io.timeout.ms": "3000"}


@contextlib.contextmanager
def _cluster(
    make_cluster: MakeCluster, config: dict[str, str] | None = None
) -> Iterator[tuple[Cluster, list[Disk], list[Path]]]:
    with contextlib.ExitStack() as stack:
        disks = [
            stack.enter_context(mounts.mounted("ext4", size_bytes=DISK_BYTES)) for _ in range(3)
        ]
        paths = [Path(disk.path, "logs") for disk in disks]
        for path in paths:
            path.mkdir()
        cluster = make_cluster(
            brokers=3,
            dirs=3,
            log_dirs={BROKER: paths},
            config={"broker.session.timeout.ms": "6000", **(config or {})},
        )
        # Open files would keep the disks from being unmounted.
        stack.callback(cluster.local.kill)
        cluster.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2
        )
        yield cluster, disks, paths


def _require_progress(cluster: Cluster, load: Load, records: int = 20) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition",
        lambda: load.flowed_since(before, records),
        explain=load.explain,
    )


def _require_others_untouched(cluster: Cluster, path: Path) -> None:
    """Assert that no other directory was suspected, and that the broker was never fenced."""
    for daemon in cluster.brokers.values():
        logged = {e["log_dir"] for e in daemon.events("log_dir_stalled")}
        assert logged <= {str(path)}, logged
    assert cluster.brokers[BROKER].is_running
    assert not cluster.local.controller.events("broker_fenced"), "it missed its beats"


def test_hanging_disk_moves_leaders_and_its_replicas_return(make_cluster: MakeCluster) -> None:
    with _cluster(make_cluster) as (cluster, disks, paths):
        broker = cluster.brokers[BROKER]
        with (
            Load(cluster.bootstrap, TOPIC, PARTITIONS) as load,
            LiveConsumer(cluster.bootstrap, TOPIC, PARTITIONS) as reader,
        ):
            _require_progress(cluster, load)
            with frozen(disks[0], at_most_s=AT_MOST_S):
                cluster.wait_event(broker, "log_dir_stalled")
                _require_progress(cluster, load)
                held = set(cluster.replicas_by_dir(BROKER, TOPIC)[str(paths[0])])
                assert held
                answered = cluster.partitions(TOPIC)
                assert all(answered[index].leader != BROKER for index in held)
                assert all(BROKER not in answered[index].isr for index in held)
                _require_progress(cluster, load, records=200)
            cluster.wait_event(broker, "log_dir_answers_again")
            cluster.wait_whole(TOPIC)
            _require_progress(cluster, load)
            load.stop()
            load.print_gaps("fsfreeze")
            assert reader.finish(load) == []
        assert not broker.events("log_dir_offline")
        _require_others_untouched(cluster, paths[0])
        assert {found.error for found in cluster.directories(BROKER).values()} == {0}
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


def test_only_replica_on_hanging_disk_keeps_its_leader(make_cluster: MakeCluster) -> None:
    """No other leader is possible; its producers continue later, without loss or duplicates."""
    with _cluster(make_cluster) as (cluster, disks, paths):
        cluster.create_topic(ALONE, partitions=6, assignments={n: [BROKER] for n in range(6)})
        held = cluster.replicas_by_dir(BROKER, ALONE)[str(paths[0])]
        assert held
        with Load(cluster.bootstrap, ALONE, 6) as load:
            _require_progress(cluster, load)
            with frozen(disks[0], at_most_s=AT_MOST_S):
                cluster.wait_event(cluster.brokers[BROKER], "log_dir_stalled")
                answered = cluster.partitions(ALONE)
                assert all(answered[index].leader == BROKER for index in held)
                before = load.acked_by_partition()
                others = [n for n in range(6) if n not in held]
                cluster.wait(
                    "progress in the other directories",
                    lambda: all(load.acked_by_partition()[n] > before[n] + 20 for n in others),
                )
            _require_progress(cluster, load)
            load.stop()
            load.print_gaps("fsfreeze, RF 1")
        assert judge(cluster.bootstrap, ALONE, load).findings == []


def test_disk_hanging_beyond_the_limit_goes_offline_and_is_reattached(
    make_cluster: MakeCluster,
) -> None:
    with _cluster(make_cluster, IMPATIENT) as (cluster, disks, paths):
        broker = cluster.brokers[BROKER]
        pid = broker.pid
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            with frozen(disks[0], at_most_s=AT_MOST_S):
                cluster.wait_event(broker, "log_dir_offline")
                _require_progress(cluster, load)
                assert cluster.directories(BROKER)[str(paths[0])].error == KAFKA_STORAGE_ERROR
            _reattach(cluster, paths[0])
            cluster.wait_whole(TOPIC)
            _require_progress(cluster, load)
            load.stop()
            load.print_gaps("fsfreeze beyond the limit, and reattached")
        assert broker.pid == pid
        _require_others_untouched(cluster, paths[0])
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.long
def test_disk_hanging_at_start_takes_only_its_directory_offline(make_cluster: MakeCluster) -> None:
    with _cluster(make_cluster, IMPATIENT) as (cluster, disks, paths):
        broker = cluster.brokers[BROKER]
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            cluster.stop_daemon(broker)
            with frozen(disks[0], at_most_s=AT_MOST_S):
                cluster.start_daemon(broker)
                _require_progress(cluster, load)
                errors = {path: d.error for path, d in cluster.directories(BROKER).items()}
                assert errors == {
                    str(path): KAFKA_STORAGE_ERROR if path == paths[0] else 0 for path in paths
                }
            _reattach(cluster, paths[0])
            cluster.wait_whole(TOPIC)
            load.stop()
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.long
def test_short_hang_at_start_delays_the_broker(make_cluster: MakeCluster) -> None:
    with _cluster(make_cluster, {"log.dir.io.suspect.ms": "500"}) as (cluster, disks, _):
        broker = cluster.brokers[BROKER]
        cluster.stop_daemon(broker)
        with frozen(disks[0], at_most_s=AT_MOST_S):
            broker.start()
            hanging = HangingThreads(broker.pid)
            cluster.wait("a thread of the broker to hang on the disk", hanging.are_any)
        cluster.wait_healthy()
        cluster.wait_whole(TOPIC)
        assert {found.error for found in cluster.directories(BROKER).values()} == {0}


class HangingThreads:
    """Threads of a process that stay in an uninterruptible wait.

    A read of a healthy disk is one, too, but not at :data:`POLLS` consecutive looks.
    """

    POLLS: Final = 5

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._polls = Counter[str]()

    def are_any(self) -> bool:
        waiting = [path.name for path in self._tasks.iterdir() if _state(path) == "D"]
        self._polls = Counter({thread: self._polls[thread] + 1 for thread in waiting})
        return any(polls >= self.POLLS for polls in self._polls.values())


def _state(task: Path) -> str:
    """Return the state of a thread, as in proc(5); empty if the thread has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _reattach(cluster: Cluster, path: Path) -> None:
    """Reattach like an operator; the disk may still process writes that waited for the thaw."""

    def is_back() -> bool:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "kraftjbod.cli.log_dirs_tool"),
                *("--bootstrap-server", cluster.bootstrap, "--reattach", f"{BROKER}:{path}"),
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            check=False,
        )
        print(done.stdout, done.stderr)
        return done.returncode == 0

    cluster.wait(f"{path} to be back", is_back)
