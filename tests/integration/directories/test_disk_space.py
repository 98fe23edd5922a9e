"""A disk fills up beside the directory's own logs: an event warns, and the broker continues."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.testing import mounts
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.disk, pytest.mark.timeout(180)]

DISK_BYTES = 64 * 1024 * 1024


def logged(cluster: Cluster, event: str) -> list[dict[str, Any]]:
    return cluster.brokers[1].events(event)


def test_filling_disk_is_logged_before_it_is_full(make_cluster: MakeCluster) -> None:
    reason = mounts.why_not("tmpfs")
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(mounts.mounted("tmpfs", size_bytes=DISK_BYTES)) for _ in "12"]
        paths = [Path(disk.path, "logs") for disk in disks]
        for path in paths:
            path.mkdir()
        cluster = make_cluster(brokers=1, log_dirs={1: paths})
        # Open files would keep the disks from being unmounted.
        stack.callback(cluster.local.kill)
        balloon = Path(disks[0].path, "balloon")
        balloon.write_bytes(os.urandom(int(DISK_BYTES * 0.92)))
        cluster.wait_event(cluster.brokers[1], "log_dir_filling_up")
        (warning,) = logged(cluster, "log_dir_filling_up")
        assert warning["log_dir"] == str(paths[0])
        assert 0 < warning["free_bytes"] < DISK_BYTES // 10
        assert warning["total_bytes"] == DISK_BYTES
        assert warning["growth_bytes_per_second"] == 0
        assert warning["disk_growth_bytes_per_second"] > 0
        assert warning["seconds_until_full"] >= 0
        figures = read_metrics(cluster.brokers[1])
        tag = f'logDirectory="{paths[0]}"'
        assert figures[f"LogDirectoryTotalBytes,{tag}"] == DISK_BYTES
        assert figures[f"LogDirectorySaturated,{tag}"] == 0
        balloon.unlink()
        cluster.wait_event(cluster.brokers[1], "log_dir_no_longer_filling_up")
        assert not logged(cluster, "log_dir_saturated")
        assert len(logged(cluster, "log_dir_filling_up")) == 1
