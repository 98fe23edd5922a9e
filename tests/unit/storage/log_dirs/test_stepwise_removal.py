"""``remove_replica_dir`` removes one file in each operation of the directory's thread."""

from __future__ import annotations

from errno import EIO

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.storage import vfs as vfs_module
from kraftjbod.storage.log_dirs.stepwise_removal import remove_replica_dir
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.large_log import KIB, MIB, CountingVfs, LargeLog, count_steps, put_large_log
from tests.faults.rig import open_dir
from tests.faults.vfs_fault import Fault

SHAPE = LargeLog.of_size(MIB, 16 * KIB, segments=10)


async def test_remove_replica_dir_removes_one_file_per_operation() -> None:
    """Appends and reads of other replicas run in between."""
    mem = MemVfs()
    directory, vfs = put_large_log(mem, "/d1", SHAPE), CountingVfs(mem)
    log_dir = open_dir(vfs)
    steps = count_steps(log_dir, vfs)
    await remove_replica_dir(log_dir, directory)
    assert not mem.exists(directory)
    assert max(count for _, count in steps) == 2  # The size of the file, and its removal.
    assert len(steps) > 3 * SHAPE.segments
    log_dir.close()


async def test_remove_replica_dir_shrinks_a_large_file_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unlinking a GiB takes seconds if the file system discards freed blocks."""
    monkeypatch.setattr(vfs_module, "REMOVAL_BYTES", 300 * KIB)
    mem = MemVfs()
    directory, vfs = put_large_log(mem, "/d1", SHAPE), CountingVfs(mem)
    path, sizes = f"{directory}/{0:020}.log", list[int]()

    def note(kind: str, name: str) -> None:
        if name == path and (extent := mem.extent_if_exists(path)) is not None:
            sizes.append(extent.size_bytes)

    log_dir = open_dir(vfs)
    vfs.on_operation = note
    await remove_replica_dir(log_dir, directory)
    assert not mem.exists(directory)
    assert sorted(set(sizes)) == [124 * KIB, 424 * KIB, 724 * KIB, MIB]
    log_dir.close()


async def test_remove_replica_dir_of_absent_directory_succeeds() -> None:
    """An operator removed it with ``rm -r`` to free its space."""
    log_dir = open_dir(MemVfs())
    with capture_logs() as events:
        await remove_replica_dir(log_dir, "/d1/t-0.1-stray")
    assert events == []
    log_dir.close()


async def test_remove_replica_dir_interrupted_leaves_no_loadable_replica() -> None:
    mem = MemVfs()
    directory, vfs = put_large_log(mem, "/d1", SHAPE), CountingVfs(mem)
    log_dir = open_dir(vfs)
    vfs.inject(Fault(errno=EIO, kinds=frozenset({"unlink_if_exists"}), nth=2))
    with pytest.raises(KafkaStorageError):
        await remove_replica_dir(log_dir, directory)
    assert not log_dir.is_online
    assert not mem.exists(f"{directory}/partition.metadata")
    assert len(mem.list_dir(directory)) > 3 * SHAPE.segments
