"""``FutureReplica``: steps behind a live replica, and attribution of their errors."""

from __future__ import annotations

import asyncio
from errno import EINVAL, EIO, EMFILE, ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError, OverloadedError
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.testing.faults import DiskFault
from tests.faults.rig import TP, directory_id
from tests.faults.vfs_fault import Fault
from tests.unit.storage.replicas.test_replica_swap import MOVE, Node, append, create, start


async def begin() -> tuple[Node, LogHandle, FutureReplica]:
    node = await start()
    handle = await create(node)
    return node, handle, await node.manager.create_future(TP, node.target, MOVE)


async def test_catch_up_steps_are_bounded_and_report_the_lag() -> None:
    node, handle, future = await begin()
    assert future.lag_of(handle) == 24
    async with node.pool.executor() as executor:
        step = await future.catch_up(handle, executor, 700)
        assert (step.copied_bytes, step.is_caught_up) == (700, False)
        assert 0 < step.lag_offsets < 24
        assert future.log_end_offset <= 6
        step = await future.catch_up(handle, executor)
        assert (step.is_caught_up, step.lag_offsets) == (True, 0)
        assert await future.catch_up(handle, executor) == (0, True, 0)
        await append(handle)
        assert future.lag_of(handle) == 2
        assert (await future.catch_up(handle, executor)).is_caught_up


async def test_catch_up_step_continues_after_its_caller_was_cancelled() -> None:
    node, handle, future = await begin()
    async with node.pool.executor() as executor:
        waiting = asyncio.ensure_future(future.catch_up(handle, executor, 700))
        await asyncio.sleep(0)
        waiting.cancel()
        await future.settle()
        assert future.size_bytes == 700
        step = await future.catch_up(handle, executor)
        assert (step.copied_bytes, step.is_caught_up) == (handle.size_bytes - 700, True)


async def test_catch_up_remembers_a_truncation_seen_by_a_failed_step() -> None:
    node, handle, future = await begin()
    async with node.pool.executor() as executor:
        await future.catch_up(handle, executor)
        await handle.truncate_to(5)
        await append(handle, epoch=1)
        fault = node.vfss[1].inject(
            Fault(errno=EMFILE, kinds=frozenset({"truncate"}), sticky=False)
        )
        with capture_logs() as events, pytest.raises(OverloadedError):
            await future.catch_up(handle, executor)
        assert fault.hits == 1
        assert [e["event"] for e in events] == ["log_dir_operation_lacked_resources"]
        assert (await future.catch_up(handle, executor)).is_caught_up
    assert future.size_bytes == handle.size_bytes


@pytest.mark.parametrize("kind", ["copy_from", "write_at", "sync", "open"])
async def test_catch_up_error_of_the_target_takes_the_target_offline(kind: str) -> None:
    node, handle, future = await begin()
    node.vfss[1].inject(Fault(errno=EIO, kinds=frozenset({kind})))
    async with node.pool.executor() as executor:
        with pytest.raises(KafkaStorageError) as failed:
            await future.catch_up(handle, executor)
            await future.sync()
    assert failed.value.directory_id == directory_id(2)
    assert [d.is_online for d in node.manager.dirs()] == [True, False]


@pytest.mark.parametrize("kind", ["read_at", "open_if_exists", "read_if_exists"])
async def test_catch_up_error_of_the_source_takes_the_source_offline(kind: str) -> None:
    node, handle, future = await begin()
    node.vfss[0].inject(Fault(errno=EIO, kinds=frozenset({kind, "open_if_exists"})))
    async with node.pool.executor() as executor:
        with pytest.raises(KafkaStorageError) as failed:
            await future.catch_up(handle, executor)
    assert failed.value.directory_id == directory_id(1)
    assert [d.is_online for d in node.manager.dirs()] == [False, True]


async def test_catch_up_with_a_full_target_keeps_the_source_online() -> None:
    node, handle, future = await begin()
    node.vfss[1].inject(Fault(errno=ENOSPC, kinds=frozenset({"copy_from"})))
    async with node.pool.executor() as executor:
        with pytest.raises(LogDirImpairedError) as failed:
            await future.catch_up(handle, executor)
    assert failed.value.directory_id == directory_id(2)
    await append(handle)


async def test_catch_up_copies_without_the_kernel_after_an_unsupported_copy() -> None:
    node, handle, future = await begin()
    fault = node.vfss[1].inject(Fault(errno=EINVAL, kinds=frozenset({"copy_from"})))
    async with node.pool.executor() as executor:
        with pytest.raises(OverloadedError, match="kernel does not copy"):
            await future.catch_up(handle, executor)
        assert (await future.catch_up(handle, executor)).is_caught_up
    assert fault.hits == 1
    assert node.target.is_online


@pytest.mark.parametrize("number", [0, 1])
async def test_catch_up_fails_when_a_directory_goes_offline_while_the_thread_hangs(
    number: int,
) -> None:
    node, handle, future = await begin()
    node.vfss[1].inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"copy_from"})))
    async with node.pool.executor() as executor:
        waiting = asyncio.ensure_future(future.catch_up(handle, executor))
        while not node.vfss[1].faults[0].hits:
            await asyncio.sleep(0.001)
        node.manager.dirs()[number].go_offline("pulled out")
        with pytest.raises(KafkaStorageError) as failed:
            await waiting
        assert failed.value.directory_id == directory_id(number + 1)
    node.vfss[1].release()


async def test_future_replica_operations_exclude_each_other_and_fail_after_discard() -> None:
    """Two concurrent operations would overwrite each other's checkpoint."""
    node, handle, future = await begin()
    async with node.pool.executor() as executor:
        assert (await future.catch_up(handle, executor)).is_caught_up
        carried = await handle.carried_state()
        hangs = Fault(effect=DiskFault.HANG, kinds=frozenset({"rename"}), sticky=False)
        node.vfss[1].inject(hangs)
        syncing = asyncio.ensure_future(future.sync())
        while not hangs.hits:
            await asyncio.sleep(0.001)
        operations: list[str] = []
        node.vfss[1].on_operation = lambda kind, path: operations.append(f"{kind} {path}")
        finishing = asyncio.ensure_future(future.finish(handle, carried, executor))
        await asyncio.wait({finishing}, timeout=0.1)
        assert operations == []
        node.vfss[1].release()
        await asyncio.gather(syncing, finishing)
        assert operations
        await future.discard("/d2/gone")
        with pytest.raises(OverloadedError, match="was abandoned"):
            await future.finish(handle, carried, executor)


async def test_future_replica_operations_are_refused_while_an_abandoned_step_hangs() -> None:
    """The source failed and the step was abandoned, but its thread still runs."""
    node, handle, future = await begin()
    async with node.pool.executor() as executor:
        assert (await future.catch_up(handle, executor)).is_caught_up
        carried = await handle.carried_state()
        hangs = Fault(effect=DiskFault.HANG, kinds=frozenset({"rename"}), sticky=False)
        node.vfss[1].inject(hangs)
        finishing = asyncio.ensure_future(future.finish(handle, carried, executor))
        while not hangs.hits:
            await asyncio.sleep(0.001)
        node.manager.dirs()[0].go_offline("pulled out")
        with pytest.raises(KafkaStorageError):
            await finishing
        operations: list[str] = []
        node.vfss[1].on_operation = lambda kind, path: operations.append(f"{kind} {path}")
        with pytest.raises(OverloadedError, match="hangs"):
            await future.sync()
        assert operations == []
        node.vfss[1].release()
        await future.sync()
        assert operations
