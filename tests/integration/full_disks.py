"""Small disks for real daemons: filling, freeing and the states that a broker reports.

* :func:`small_disks` mounts them for the duration of a test; :func:`logs_on` creates a log
directory on each, for a cluster.
* :meth:`Disk.fill` fills a disk from outside, and :meth:`Disk.free_space` undoes it.
* :func:`wait_state` waits for a directory's state at a broker, :func:`wait_led_elsewhere` for the
  leader changes in the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.messages import DescribeLogDirsRequest
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.integration import raw
from tests.integration.cluster import Cluster

SMALL_BYTES: Final = 48 * 1024 * 1024
_DESCRIBE = DescribeLogDirsRequest
_DESCRIBE_VERSION: Final = 5


@contextlib.contextmanager
def small_disks(
    count: int, *, kind: Kind = "tmpfs", size_bytes: int = SMALL_BYTES
) -> Iterator[list[Disk]]:
    """Mount new file systems; skip the test if they cannot be mounted."""
    reason = mounts.why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(mounts.mounted(kind, size_bytes=size_bytes)) for _ in range(count)
        ]


def logs_on(disks: Sequence[Disk]) -> list[Path]:
    """Create one log directory per disk."""
    paths = [Path(disk.path, "logs") for disk in disks]
    for path in paths:
        path.mkdir()
    return paths


def states(cluster: Cluster, broker_id: int) -> dict[str, LogDirState]:
    """Return the state of each of a broker's directories, by path."""
    address = cluster.brokers[broker_id].address
    answered = raw.exchange(address, _DESCRIBE(topics=None), _DESCRIBE_VERSION)
    return {one.log_dir: LogDirState(one.state) for one in answered.results}


def wait_state(cluster: Cluster, broker_id: int, path: Path, state: LogDirState) -> None:
    cluster.wait(
        f"{path} of broker {broker_id} to be {state.value}",
        lambda: states(cluster, broker_id)[str(path)] is state,
        explain=lambda: str(states(cluster, broker_id)),
    )


def wait_led_elsewhere(
    cluster: Cluster, topic: str, broker_id: int, partitions: Sequence[int]
) -> None:
    """Wait until the broker neither leads the partitions nor is in sync for them."""

    def is_reached() -> bool:
        answered = cluster.partitions(topic)
        return all(
            answered[index].leader not in (broker_id, -1) and broker_id not in answered[index].isr
            for index in partitions
        )

    cluster.wait(
        f"{topic} {list(partitions)} to be led elsewhere than on broker {broker_id}",
        is_reached,
        explain=lambda: str(cluster.partitions(topic)),
    )
