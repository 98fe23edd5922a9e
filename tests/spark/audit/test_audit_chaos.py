"""The audit of a cluster after failures and recovery, and of one with real losses.

The job runs as a user runs it, by ``bin/kraftjbod-pipeline`` in a separate process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.protocol.record_batch import batches
from kraftjbod.testing import mounts
from tests.checkout import ROOT
from tests.integration.checker import Load
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark.running import run

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(900)]

PARTITIONS = 6
# The job runs about thirty small queries, each of which waits on a busy machine.
LONGEST_S = 500
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def audit(cluster: Cluster, tables: Path, *options: str) -> tuple[int, Any]:
    """Return the exit code and the summary."""
    asked = ["--bootstrap-server", cluster.bootstrap, "--tables", str(tables), "--json"]
    asked += ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    done = run(str(ROOT / "bin/kraftjbod-pipeline"), "audit", *asked, *options, longest_s=LONGEST_S)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def log_of(cluster: Cluster, broker: int, topic: str) -> Path:
    (path,) = [p for p, held in cluster.replicas_by_dir(broker, topic).items() if held == [0]]
    return Path(path, f"{topic}-0", f"{0:020}.log")


def test_audit_after_dead_disk_and_killed_broker_finds_nothing_missing(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(brokers=3, dirs=3, config=SHORT_SESSIONS)
    cluster.create_topic("t", partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)

    def require_progress() -> None:
        before = load.acked_by_partition()
        cluster.wait("load", lambda: load.flowed_since(before, 20), explain=load.explain)

    with Load(cluster.bootstrap, "t", PARTITIONS) as load:
        require_progress()
        with mounts.closed_to_owner(str(cluster.local.dir_path(2, 1))):
            cluster.wait_event(cluster.brokers[2], "log_dir_offline")
            require_progress()
        cluster.stop_daemon(cluster.brokers[2])
        cluster.start_daemon(cluster.brokers[2])
        cluster.wait_whole("t")
        cluster.brokers[3].kill()
        require_progress()
        cluster.start_daemon(cluster.brokers[3])
        cluster.wait_whole("t")
        require_progress()
        load.stop()
    written = load.write_acknowledged(tmp_path / "acknowledged.jsonl")
    printed = audit(
        cluster,
        tmp_path / "tables",
        *("--acknowledged", str(tmp_path / "acknowledged.jsonl"), "--records-are-unique"),
    )
    code, summary = printed
    assert (code, summary["differences"], summary["unchecked"]) == (0, {}, [])
    assert summary["standings"] == {"found": written}
    assert (summary["records"], summary["replicas"]) == (load.acked, 3 * PARTITIONS)


def test_audit_of_lost_and_damaged_records_finds_exactly_those(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """The only replica of one topic loses the end of its file while its broker is down.

    The log then ends earlier, so only the acknowledgements show the loss. In a follower of another
    topic one byte changes."""
    cluster = make_cluster(brokers=3, dirs=1, config=SHORT_SESSIONS)
    cluster.create_topic("single", assignments={0: [1]})
    cluster.create_topic("triple", assignments={0: [2, 3, 1]})
    paths = []
    for topic in ("single", "triple"):
        with Load(cluster.bootstrap, topic, 1) as load:
            cluster.wait("load", lambda load=load: load.flowed_since([0], 100))
            load.stop()
        paths.append(tmp_path / f"{topic}.jsonl")
        load.write_acknowledged(paths[-1])
    (tmp_path / "acknowledged.jsonl").write_text("".join(path.read_text() for path in paths))
    log = log_of(cluster, 1, "single")
    cluster.stop_daemon(cluster.brokers[1])
    *_, (cut_at, cut) = list(batches(log.read_bytes()))[:-20]
    os.truncate(log, cut_at)
    cluster.start_daemon(cluster.brokers[1])
    cluster.wait_whole("single")
    cluster.wait_whole("triple")
    log = log_of(cluster, 3, "triple")
    at, damaged = list(batches(log.read_bytes()))[7]
    with log.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", at + damaged.size_bytes - 5)

    code, summary = audit(
        cluster, tmp_path / "tables", "--acknowledged", str(tmp_path / "acknowledged.jsonl")
    )
    acked = [json.loads(line) for line in paths[0].read_text().splitlines()]
    gone = [line["offset"] for line in acked if line["offset"] >= cut.base_offset]
    assert code == 1 and len(gone) >= 20
    assert summary["differences"] == {"missing": len(gone), "bad_crc": 1}
    assert summary["standings"]["missing"] == len(gone)
    first = summary["first_differences"]
    (triple,) = (row for row in first if row["difference"] == "bad_crc")
    assert (triple["topic"], triple["offset"], triple["broker_id"]) == (
        "triple",
        damaged.base_offset,
        3,
    )
    assert str(log.parent.parent) in triple["detail"]
    missing = [row for row in first if row["difference"] == "missing"]
    assert {row["topic"] for row in missing} == {"single"}
    assert min(row["offset"] for row in missing) == cut.base_offset
    assert summary["unchecked"] == []
