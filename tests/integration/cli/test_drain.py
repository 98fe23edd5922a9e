"""``bin/kraftjbod-drain`` on a cluster of real processes: directories and brokers are drained.

Another client checks whether they are empty, and whether all records are there."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from kraftjbod.testing import mounts
from tests.checkout import BIN
from tests.integration.clients import read_confluent, write_confluent
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import tool

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(240)]

BROKERS = (1, 2, 3)
VALUES = [b"%06d" % index + bytes(1000) for index in range(3000)]
# So slow that VALUES take half a minute.
SLOW = "100000"
_names = (f"drained-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    # The readers ask for a coordinator, and the topic of consumer groups would have as many
    # replicas # as there are brokers, so that none of them could leave a broker.
    config = {
        "broker.session.timeout.ms": "4000",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
    }
    made = make_shared_cluster(
        brokers=3,
        dirs=3,
        config=config,
        broker_config={n: {"broker.heartbeat.interval.ms": "500"} for n in BROKERS},
    )
    # The topic is created half a second after the first request; a faster test would run without
    # it.
    with made.admin() as admin:
        made.wait("the topic of groups", lambda: admin.describe_groups(["checker"]))
    yield made


@pytest.fixture(autouse=True)
def nothing_cordoned(cluster: Cluster) -> Iterator[None]:
    yield
    for broker in BROKERS:
        words = ("--alter", "--entity-type", "brokers", "--entity-name", str(broker))
        tool("configs", cluster, *words, "--delete-config", "cordoned.log.dirs")
    with cluster.admin() as admin:
        ours = [name for name in admin.list_topics() if name.startswith("drained-")]
        admin.delete_topics(ours)


def drain(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "kraftjbod-drain"), "--bootstrap-server", cluster.bootstrap, *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, cwd="/"
    )


def unregister(cluster: Cluster, broker: int) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "kraftjbod-cluster"), "unregister", "--bootstrap-server"]
    return subprocess.run(
        [*command, cluster.bootstrap, "--id", str(broker)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )


@contextlib.contextmanager
def draining(cluster: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the tool in the background."""
    command = [str(BIN / "kraftjbod-drain"), "--bootstrap-server", cluster.bootstrap, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def path_of(cluster: Cluster, broker: int, number: int) -> str:
    return str(cluster.local.dir_path(broker, number))


def held(cluster: Cluster, broker: int, path: str | None = None) -> list[str]:
    """Return the partitions that a broker has, in one directory or in all."""
    found = cluster.directories(broker)
    return sorted(name for where, d in found.items() if path in (None, where) for name in d.sizes)


def filled_topic(cluster: Cluster, replicas: list[int], partitions: int = 3) -> str:
    """Create a topic whose partition 0 has records, and whose other partitions are empty."""
    name = next(_names)
    cluster.create_topic(name, assignments=dict.fromkeys(range(partitions), replicas))
    write_confluent(cluster.bootstrap, name, VALUES)
    return name


def require_complete(cluster: Cluster, topic: str) -> None:
    cluster.wait_whole(topic)
    assert read_confluent(cluster.bootstrap, topic, len(VALUES)) == VALUES


def dir_of(cluster: Cluster, broker: int, topic: str) -> str:
    """Return the directory of partition 0."""
    found = cluster.replicas_by_dir(broker, topic)
    return next(path for path, partitions in found.items() if 0 in partitions)


def test_drain_empties_directory_which_can_then_be_removed(cluster: Cluster) -> None:
    name = filled_topic(cluster, [1, 2])
    path = dir_of(cluster, 1, name)
    planned = drain(cluster, "--dir", f"1:{path}", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"{name}-0 " in planned.stdout and f"1:{path} -> 1:/" in planned.stdout
    assert held(cluster, 1, path) != []
    done = drain(cluster, "--dir", f"1:{path}")
    assert done.returncode == 0, done.stderr
    assert f"{path} of broker 1" in done.stdout
    assert held(cluster, 1, path) == []
    require_complete(cluster, name)
    after = next(_names)
    cluster.create_topic(after, assignments={n: [1] for n in range(4)})
    assert cluster.replicas_by_dir(1, after)[path] == []
    again = drain(cluster, "--dir", f"1:{path}", "--format", "json")
    assert (again.returncode, json.loads(again.stdout)["moved"]) == (0, 0)
    # Follow the tool's instructions, and add the directory again.
    assert f"  kraftjbod-log-dirs --forget 1:{path}\n" in done.stdout
    gone = tool("log-dirs", cluster, "--forget", f"1:{path}")
    assert gone.returncode == 0, gone.stderr
    assert path not in cluster.directories(1)
    back = tool("log-dirs", cluster, "--add", f"1:{path}")
    assert back.returncode == 0, back.stderr
    assert path in cluster.directories(1)


def test_drain_of_broker_moves_its_replicas_to_other_brokers(cluster: Cluster) -> None:
    name = filled_topic(cluster, [3, 1])
    done = drain(cluster, "--broker", "3", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "drained"
    assert held(cluster, 3) == []
    assert {p.replicas for p in cluster.partitions(name).values()} == {(2, 1)}
    require_complete(cluster, name)


def test_interrupted_drain_is_resumed_by_the_same_command(cluster: Cluster) -> None:
    name = filled_topic(cluster, [1, 2])
    path = dir_of(cluster, 1, name)
    order = ("--dir", f"1:{path}")
    with draining(cluster, *order, "--throttle", SLOW) as process:
        cluster.wait(
            "the move to have begun",
            lambda: held(cluster, 1).count(f"{name}-0") == 2 or _is_moving(cluster, name),
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Run the same command again to resume, or with --cancel" in err
    assert _is_moving(cluster, name)
    done = drain(cluster, *order, "--throttle", "1000000000")
    assert done.returncode == 0, done.stderr
    assert held(cluster, 1, path) == []
    require_complete(cluster, name)
    rate = "replica.alter.log.dirs.io.max.bytes.per.second"
    words = ("--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert rate not in tool("configs", cluster, *words).stdout


def _is_moving(cluster: Cluster, topic: str) -> bool:
    answered = json.loads(tool("log-dirs", cluster, "--describe", "--format", "json").stdout)
    return any(
        replica["isFuture"] and replica["partition"] == f"{topic}-0"
        for broker in answered["brokers"]
        for log_dir in broker["logDirs"]
        for replica in log_dir["partitions"]
    )


def test_drain_cancel_reverts_move_and_cordon(cluster: Cluster) -> None:
    name = filled_topic(cluster, [1, 2])
    path = dir_of(cluster, 1, name)
    order = ("--dir", f"1:{path}")
    with draining(cluster, *order, "--throttle", SLOW) as process:
        cluster.wait("the move to have begun", lambda: _is_moving(cluster, name))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    # Small replicas in the same directory have moved, and do not return.
    cluster.wait("one to be left", lambda: held(cluster, 1, path) == [f"{name}-0"])
    done = drain(cluster, *order, "--cancel")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Cancelled 1 move out of directory {path} of broker 1.\n"
    cluster.wait("the move to have ended", lambda: not _is_moving(cluster, name))
    assert dir_of(cluster, 1, name) == path
    shown = tool("configs", cluster, "--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert "cordoned.log.dirs" not in shown.stdout
    require_complete(cluster, name)


def test_drain_completes_although_the_target_broker_dies_while_copying(cluster: Cluster) -> None:
    """Broker 3 is the only one that can take broker 1's replicas, and dies while it copies."""
    name = filled_topic(cluster, [1, 2])
    with draining(cluster, "--broker", "1", "--throttle", SLOW) as process:
        cluster.wait("some of it on 3", lambda: f"{name}-0" in held(cluster, 3))
        daemon = cluster.brokers[3]
        fenced = len(cluster.local.controller.events("broker_fenced"))
        daemon.kill()
        cluster.wait_event(cluster.local.controller, "broker_fenced", fenced + 1)
        cluster.start_daemon(daemon)
        _set_rates(cluster, name)
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, out + err
    assert "it is safe to stop" in out
    assert held(cluster, 1) == []
    assert {p.replicas for p in cluster.partitions(name).values()} == {(3, 2)}
    require_complete(cluster, name)


def test_drain_of_lost_broker_copies_from_live_brokers(cluster: Cluster) -> None:
    """Only metadata and the other replicas are needed: the broker never returns."""
    name = filled_topic(cluster, [3, 1])
    lost = cluster.brokers[3]
    lost.kill()
    try:
        cluster.wait(
            "no leader on broker 3", lambda: cluster.partitions(name, ask=1)[0].leader == 1
        )
        refused = unregister(cluster, 3)
        assert refused.returncode == 1
        assert "broker 3 still has 3 replicas" in refused.stderr
        planned = drain(cluster, "--broker", "3", "--dry-run")
        assert planned.returncode == 0, planned.stderr
        assert f"{name}-0 " in planned.stdout and " 3 -> 2:/" in planned.stdout
        done = drain(cluster, "--broker", "3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "it is not alive" in done.stdout
        assert "  kraftjbod-cluster unregister --id 3\n" in done.stdout
        replicas = {p.replicas for p in cluster.partitions(name, ask=1).values()}
        assert replicas == {(2, 1)}
        gone = unregister(cluster, 3)
        assert gone.returncode == 0, gone.stderr
        require_complete(cluster, name)
    finally:
        cluster.start_daemon(lost)


def _set_rates(cluster: Cluster, topic: str) -> None:
    """Raise the throttles, as another operator might do."""
    words = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--delete-config")
    keys = "leader.replication.throttled.replicas,follower.replication.throttled.replicas"
    tool("configs", cluster, *words, keys)


@pytest.mark.skipif(mounts.why_not("tmpfs") is not None, reason=str(mounts.why_not("tmpfs")))
def test_drain_that_does_not_fit_is_refused_before_any_move(make_cluster: MakeCluster) -> None:
    mib = 1024 * 1024
    with contextlib.ExitStack() as disks:
        large, small = (
            Path(disks.enter_context(mounts.mounted("tmpfs", size_bytes=size * mib)).path)
            for size in (64, 8)
        )
        cluster = make_cluster(
            brokers=1,
            log_dirs={1: [large, small]},
            config={"log.dir.reserve.bytes": "1048576"},
        )
        disks.callback(cluster.local.kill)
        name = next(_names)
        cluster.create_topic(name, assignments={0: [1]})
        assert dir_of(cluster, 1, name) == str(large)
        for _ in range(4):
            write_confluent(cluster.bootstrap, name, VALUES)
        refused = drain(cluster, "--dir", f"1:{large}")
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert f"  {name}-0: 11." in refused.stdout
        assert " free at best" in refused.stdout
        assert dir_of(cluster, 1, name) == str(large)
        words = ("--describe", "--entity-type", "brokers", "--entity-name", "1")
        assert "cordoned.log.dirs" not in tool("configs", cluster, *words).stdout
        as_json = drain(cluster, "--dir", f"1:{large}", "--dry-run", "--format", "json")
        assert as_json.returncode == 2
        printed = json.loads(as_json.stdout)
        assert [one["partition"] for one in printed["doesNotFit"]] == [f"{name}-0"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--dir", "1:/nowhere"), "broker 1 has no log directory /nowhere; it has /"),
        (("--broker", "9"), "there is no broker 9"),
    ],
)
def test_drain_of_unknown_directory_or_broker_fails_with_reason(
    cluster: Cluster, words: tuple[str, ...], why: str
) -> None:
    done = drain(cluster, *words)
    assert done.returncode == 1
    assert why in done.stderr


def test_drain_cancel_of_broker_reverts_reassignment(cluster: Cluster) -> None:
    name = filled_topic(cluster, [2, 3])
    with draining(cluster, "--broker", "2", "--throttle", SLOW) as process:
        cluster.wait("some of it on 1", lambda: f"{name}-0" in held(cluster, 1))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    done = drain(cluster, "--broker", "2", "--cancel", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "cancelled"
    assert sorted(cluster.partitions(name)[0].replicas) == [2, 3]
    words = ("--describe", "--entity-type", "brokers", "--entity-name", "2")
    assert "cordoned.log.dirs" not in tool("configs", cluster, *words).stdout
    require_complete(cluster, name)


@pytest.mark.skipif(mounts.why_not("tmpfs") is not None, reason=str(mounts.why_not("tmpfs")))
def test_drain_empties_saturated_directory(make_cluster: MakeCluster) -> None:
    """KIP-928: a saturated directory accepts no replica, but all its replicas can move out."""
    mib = 1024 * 1024
    with contextlib.ExitStack() as disks:
        full, other = (
            Path(disks.enter_context(mounts.mounted("tmpfs", size_bytes=size * mib)).path)
            for size in (24, 16)
        )
        cluster = make_cluster(
            brokers=1,
            log_dirs={1: [full, other]},
            config={"log.dir.reserve.bytes": "2097152", "log.dir.check.interval.ms": "100"},
        )
        disks.callback(cluster.local.kill)
        name = next(_names)
        cluster.create_topic(name, assignments={0: [1]}, segment_bytes=2 * mib)
        assert dir_of(cluster, 1, name) == str(full)
        write_confluent(cluster.bootstrap, name, VALUES)
        ballast = full / "ballast"
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(64 * 1024))
                file.flush()
        with pytest.raises(confluent_kafka.KafkaException):
            write_confluent(cluster.bootstrap, name, VALUES, message_timeout_ms=5000)
        cluster.wait("it to be saturated", lambda: _state(cluster, str(full)) == "saturated")
        done = drain(cluster, "--dir", f"1:{full}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert held(cluster, 1, str(full)) == []
        assert read_confluent(cluster.bootstrap, name, len(VALUES)) == VALUES


def _state(cluster: Cluster, path: str) -> str:
    answered = json.loads(tool("log-dirs", cluster, "--describe", "--format", "json").stdout)
    dirs = {d["logDir"]: d for broker in answered["brokers"] for d in broker["logDirs"]}
    state: str = dirs[path]["state"]
    return state
