"""A move, told again and again: the N-th operation on one of the two disks fails, for every N.

Afterwards: that disk's dir is OFFLINE and the other one is not, the replica is served from where
it was if that dir lives, and once both disks work again there is one current copy with all that
was acknowledged, and the move goes on or is over.
"""

from __future__ import annotations

import random
from errno import EIO

import pytest

from kraftjbod.core.errors import KafkaStorageError, OperatingError
from kraftjbod.storage.log_dir import LogDirFailureChannel
from kraftjbod.storage.log_manager import LogManager
from tests.faults.move_rig import TP, Written, append, check, node_on, story, two_disks, watched
from tests.faults.vfs_fault import Effect, Fault
from tests.faults.vfs_mem import MemVfs


async def tell_with(
    number: int, fault: Fault
) -> tuple[tuple[MemVfs, MemVfs], LogManager, Written, OperatingError | None]:
    disks = two_disks()
    vfss = watched(disks)
    manager = node_on(*vfss, channel=LogDirFailureChannel(max_dirs=2))
    await manager.load()
    vfss[number].inject(fault)
    written, error = Written(), None
    try:
        await story(manager, written, random.Random(7))
    except OperatingError as e:
        error = e
    await go_on_without(manager, written)
    vfss[number].clear()
    return disks, manager, written, error


async def go_on_without(manager: LogManager, written: Written) -> None:
    """As the broker does: the dead dir is dropped, the rest is served."""
    for log_dir in manager.offline_dirs():
        manager.drop(log_dir)
    handle = manager.get(TP)
    if handle is not None and not handle._published.is_closed:
        await append(handle, written, random.Random(3), handle.latest_epoch + 1)


async def sweep(number: int, errno: int, *, kinds: frozenset[str] | None = None) -> int:
    """How many cases there were."""
    for n in range(1, 2000):
        fault = Fault(errno=errno, nth=n, kinds=kinds)
        disks, manager, written, error = await tell_with(number, fault)
        dirs = manager.dirs()
        if fault.hits == 0:
            assert error is None
            return n - 1
        assert not dirs[number].is_online, (n, error)
        assert dirs[1 - number].is_online, (n, error)
        if error is not None:
            assert isinstance(error, KafkaStorageError), n
            assert error.directory_id == dirs[number].directory_id, n
        await check(disks, written, at_least=written.acked_end if written.is_created else 0)
    raise AssertionError("the story never ended")


async def test_every_operation_on_the_source_fails():
    assert await sweep(0, EIO) > 100


async def test_every_operation_on_the_target_fails():
    """A broken target never takes the source with it."""
    assert await sweep(1, EIO) > 100


async def test_every_copy_falls_short():
    for n in range(1, 200):
        fault = Fault(effect=Effect.SHORT_WRITE, errno=EIO, kinds=frozenset({"copy_from"}), nth=n)
        disks, manager, written, _ = await tell_with(1, fault)
        if fault.hits == 0:
            assert n > 5
            return
        assert [log_dir.is_online for log_dir in manager.dirs()] == [True, False]
        await check(disks, written, at_least=written.acked_end)
    pytest.fail("the story never ended")
