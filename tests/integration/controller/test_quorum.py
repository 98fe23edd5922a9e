"""Three controllers as processes: the active one is killed under load, comes back, and follows."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.testing.local_cluster import LocalCluster

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
                    # What was repeated at the next controller may have been done by the last one.
                    if e.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        continue
            self.acknowledged.append(f"t{number}")
            self.times.append(time.monotonic())


def _topics(cluster: LocalCluster) -> set[str]:
    async def ask() -> set[str]:
        async with ClusterClient(cluster.bootstrap_servers) as client:
            return set((await client.refresh_metadata()).topics)

    return asyncio.run(ask())


def test_the_active_controller_is_killed_under_load_and_comes_back() -> None:
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
                print(f"metadata operations went on {first - killed_s:.3f} s after the kill")
                new = cluster.active_controller()
                assert new is not old
                old.start()
                cluster.wait(
                    "it to be back",
                    lambda o=old, n=lives: len(o.events("controller_started")) > n,
                )
                count = len(creator.acknowledged)
                cluster.wait("still more", lambda n=count: len(creator.acknowledged) > n + 5)
            assert cluster.active_controller() is new, "who came back disturbs nobody"
        cluster.wait(
            "every acknowledged topic to be known",
            lambda: set(creator.acknowledged) <= _topics(cluster),
        )
        # Another one still: it knows all of it.
        cluster.active_controller().kill()
        cluster.create_topic("after", partitions=3)
        assert set(creator.acknowledged) <= _topics(cluster)
        assert not any(broker.events("metadata_refused") for broker in cluster.brokers)
