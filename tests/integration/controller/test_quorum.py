"""Three controllers as processes: the active one is killed under load, returns, and follows."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import threading
import time

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.health_tool import examine
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.local import network_hosts
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import BIN

pytestmark = pytest.mark.long


class Creator:
    """Creates topics one after the other; a name counts once it was acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Creator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._create_all())

    async def _create_all(self) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            async with ClusterClient(self._cluster.bootstrap_servers) as client:
                try:
                    await create_topic(client, f"t{number}", partitions=2, replication_factor=3)
                except OperatingError as e:
                    # A retry by this client, which no broker can recognize as one.
                    if e.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        continue
            self.acknowledged.append(f"t{number}")
            self.times.append(time.monotonic())


def _topics(cluster: LocalCluster) -> set[str]:
    async def ask() -> set[str]:
        async with ClusterClient(cluster.bootstrap_servers) as client:
            return set((await client.refresh_metadata()).topics)

    return asyncio.run(ask())


def test_active_controller_killed_under_load_returns_as_follower() -> None:
    with LocalCluster(brokers=3, dirs=1, controllers=3, disks="plain") as cluster:
        with Creator(cluster) as creator:
            cluster.wait("some topics", lambda: len(creator.acknowledged) > 5)
            for _ in range(2):
                old = cluster.active_controller()
                lives = len(old.events("controller_started"))
                killed_s = time.monotonic()
                old.kill()
                cluster.wait("more topics", lambda s=killed_s: creator.times[-1] > s + 0.01)
                first = next(at for at in creator.times if at > killed_s + 0.01)
                print(f"metadata operations resumed {first - killed_s:.3f} s after the kill")
                new = cluster.active_controller()
                assert new is not old
                old.start()
                cluster.wait(
                    "it to be back",
                    lambda o=old, n=lives: len(o.events("controller_started")) > n,
                )
                count = len(creator.acknowledged)
                cluster.wait("still more", lambda n=count: len(creator.acknowledged) > n + 5)
            assert cluster.active_controller() is new, "the returning controller does not disturb"
        cluster.wait(
            "every acknowledged topic to be known",
            lambda: set(creator.acknowledged) <= _topics(cluster),
        )
        # The next active controller knows all topics.
        cluster.active_controller().kill()
        cluster.create_topic("after", partitions=3)
        assert set(creator.acknowledged) <= _topics(cluster)
        assert not any(broker.events("metadata_refused") for broker in cluster.brokers)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_controller_minority_that_is_cut_off_decides_nothing_and_rejoins() -> None:
    with LocalCluster(brokers=3, dirs=1, controllers=3, disks="plain", hosts=True) as cluster:
        old = cluster.active_controller()
        network_hosts.cut(old.files.host)
        cluster.wait("it to notice", lambda: old.events("controller_resigned"))
        cluster.wait("another one", lambda: cluster.active_controller() is not old)
        cluster.create_topic("meanwhile", partitions=3)
        new = cluster.active_controller()
        assert len(old.events("controller_active")) == len(old.events("controller_resigned"))
        network_hosts.mend(old.files.host)
        cluster.wait("it to follow", lambda: _health(old) is None)
        cluster.create_topic("after", partitions=3)
        assert cluster.active_controller() is new, "the returning controller does not disturb"
        # The returned controller has all of the log.
        new.kill()
        cluster.create_topic("later", partitions=3)
        assert {"meanwhile", "after", "later"} <= _topics(cluster)


def test_quorum_with_majority_of_wiped_disks_refuses_to_decide() -> None:
    with LocalCluster(brokers=1, dirs=1, controllers=3, disks="plain") as cluster:
        cluster.create_topic("kept")
        kept, *lost = cluster.controllers
        for one in lost:
            one.kill()
            for path in one.files.metadata_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            words = ("format", "-t", cluster.processes.cluster_id, "-c", one.files.config_path)
            tool = (BIN / "kraftjbod-storage", *words)
            refused = subprocess.run(tool, capture_output=True, text=True)
            assert refused.returncode and "docs/metadata-backup.md says how" in refused.stderr
            subprocess.run((*tool, "--replace-lost"), check=True, capture_output=True)
            for path in one.files.metadata_dir.iterdir():
                cluster.processes.privileges.give(path)
            one.start()
        # While the remaining voter runs, neither side accepts the other as the former voter.
        cluster.wait(
            "each of the others to refuse both",
            lambda: all(
                len({e["peer"] for e in one.events("controller_refused_by_peer")}) == 2
                for one in lost
            ),
        )
        assert not any(_health(one) is None for one in cluster.controllers), "no decision"
        # Without it, the two empty controllers are a majority that knows nothing.
        kept.kill()
        broker = cluster.processes.brokers[1]
        cluster.wait("a word of it", lambda: broker.events("metadata_refused"))
        assert "docs/metadata-backup.md" in broker.events("metadata_refused")[-1]["reason"]
        kept.start()
        cluster.wait("it to follow neither", lambda: "no leader is known" in (_health(kept) or ""))
        assert _topics(cluster) == {"kept"}


def _health(controller: DaemonProcess) -> str | None:
    """Return the reason why the controller does not serve, or None."""
    return asyncio.run(examine(controller.address, 2_000, is_broker=False)).reason
