"""Reading the identity of one directory, and giving it an id."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.identity.dir_examination import examine, give_id
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_thread import SimulatedExecutor, pause
from kraftjbod.testing.simulation.virtual_loop import virtual_loop
from kraftjbod.testing.simulation.world import World
from tests.faults.rig import CLUSTER_ID, NODE_ID, ManualClock, directory_id, format_dir


def log_dir(vfs: Vfs, make_executor: MakeExecutor = LogDirExecutor) -> LogDir:
    return LogDir(
        path="/d",
        vfs=vfs,
        clock=ManualClock(),
        failure_channel=LogDirFailureChannel(max_dirs=1),
        make_executor=make_executor,
    )


class SlowVfs(MemVfs):
    """A Vfs whose ``exists`` takes two seconds of virtual time."""

    def exists(self, path: str) -> bool:
        pause(1_000_000)
        pause(1_000_000)
        return super().exists(path)


async def test_examine_writes_nothing_into_an_empty_directory() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    found = await examine(log_dir(vfs), timeout_ms=5000)
    assert found is not None
    assert (found.properties, found.device) == (None, 1)
    assert vfs.list_dir("/d") == []


async def test_examine_locks_the_directory() -> None:
    vfs = MemVfs()
    format_dir(vfs, "/d", 1)
    found = await examine(log_dir(vfs), timeout_ms=5000)
    assert found is not None
    assert found.properties is not None
    assert found.properties.directory_id == directory_id(1)
    with pytest.raises(StartupError, match="Failed to acquire lock"):
        await examine(log_dir(vfs), timeout_ms=5000)


def test_examine_timeout_excludes_the_time_of_a_paused_process() -> None:
    vfs, world = SlowVfs(), World(seed=1)
    format_dir(vfs, "/d", 1)
    loop = virtual_loop(world, "a")
    asked = log_dir(vfs, SimulatedExecutor)
    asking = loop.create_task(examine(asked, timeout_ms=10_000))
    world.run_until(500_000)
    loop.pause_process()
    world.run_until(60_000_000)
    loop.go_on()
    world.run_until(70_000_000)
    found = asking.result()
    assert found is not None, asked.offline_reason
    assert found.properties is not None


async def test_give_id_writes_one_id_and_fails_for_a_second_holder() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    new = log_dir(vfs)
    await give_id(new, directory_id(4), cluster_id=CLUSTER_ID, node_id=NODE_ID)
    written = read_meta_properties(vfs, "/d/meta.properties")
    assert written is not None
    assert written.directory_id == directory_id(4)
    with pytest.raises(StartupError, match="in use"):
        await give_id(log_dir(vfs), directory_id(5), cluster_id=CLUSTER_ID, node_id=NODE_ID)
