"""Asking one dir who it is, and giving it an id; whole starts are test_dir_opener.py's."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.identity.dir_examination import examine, give_id
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import CLUSTER_ID, NODE_ID, ManualClock, directory_id, format_dir


def log_dir(vfs: Vfs) -> LogDir:
    return LogDir(
        path="/d",
        vfs=vfs,
        clock=ManualClock(),
        failure_channel=LogDirFailureChannel(max_dirs=1),
    )


async def test_an_empty_dir_is_not_written_to():
    vfs = MemVfs()
    vfs.make_dirs("/d")
    found = await examine(log_dir(vfs), timeout_ms=5000)
    assert found is not None
    assert (found.properties, found.device) == (None, 1)
    assert vfs.list_dir("/d") == []


async def test_a_dir_is_locked_as_it_is_asked():
    vfs = MemVfs()
    format_dir(vfs, "/d", 1)
    found = await examine(log_dir(vfs), timeout_ms=5000)
    assert found is not None
    assert found.properties is not None
    assert found.properties.directory_id == directory_id(1)
    with pytest.raises(StartupError, match="Failed to acquire lock"):
        await examine(log_dir(vfs), timeout_ms=5000)


async def test_a_first_id_is_given_once_and_to_one_holder():
    vfs = MemVfs()
    vfs.make_dirs("/d")
    new = log_dir(vfs)
    await give_id(new, directory_id(4), cluster_id=CLUSTER_ID, node_id=NODE_ID)
    written = read_meta_properties(vfs, "/d/meta.properties")
    assert written is not None
    assert written.directory_id == directory_id(4)
    with pytest.raises(StartupError, match="in use"):
        await give_id(log_dir(vfs), directory_id(5), cluster_id=CLUSTER_ID, node_id=NODE_ID)
