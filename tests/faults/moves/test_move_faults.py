"""A move run repeatedly with the N-th operation on one of the two disks failing, for each N.

Afterwards the directory of that disk is OFFLINE and the other one is not. The replica is served
from its directory if that is online. Once both disks work, there is one current copy with all
acknowledged records, and the move can be finished or is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from errno import EIO, ENOSPC

import pytest

from kraftjbod.core.errors import KafkaStorageError, OperatingError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.moves.move_rig import (
    TP,
    Written,
    append,
    caught_up,
    check,
    manager_on,
    run_workload,
    two_disks,
    watched,
)
from tests.faults.rig import ManualClock, open_dir
from tests.faults.vfs_fault import Fault
from tests.unit.broker.gates import settle

#: Number of parts of a sweep.
SHARES = 4


async def play_with(
    number: int, fault: Fault
) -> tuple[tuple[MemVfs, MemVfs], LogManager, Written, OperatingError | None]:
    disks = two_disks()
    vfss = watched(disks)
    manager = manager_on(*vfss, channel=LogDirFailureChannel(max_dirs=2))
    await manager.load()
    vfss[number].inject(fault)
    written, error = Written(), None
    try:
        await run_workload(manager, written, random.Random(7))
    except OperatingError as e:
        error = e
    await serve_remaining_dirs(manager, written)
    vfss[number].clear()
    return disks, manager, written, error


async def serve_remaining_dirs(manager: LogManager, written: Written) -> None:
    """Drop the failed directory as the broker does, and append to the remaining replica."""
    for log_dir in manager.offline_dirs():
        manager.drop(log_dir)
    handle = manager.get(TP)
    if handle is not None and not handle._published.is_closed:
        await append(handle, written, random.Random(3), handle.latest_epoch + 1)


async def sweep(number: int, share: int) -> int:
    """Fail each :data:`SHARES`-th operation on one disk, and return the number of operations."""
    for n in range(1 + share, 2000, SHARES):
        fault = Fault(errno=EIO, nth=n)
        disks, manager, written, error = await play_with(number, fault)
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
    raise AssertionError("the run_workload never ended")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", range(SHARES))
async def test_move_error_at_any_operation_of_the_source_keeps_one_complete_copy(
    share: int,
) -> None:
    assert await sweep(0, share) > 100


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", range(SHARES))
async def test_move_error_at_any_operation_of_the_target_keeps_one_complete_copy(
    share: int,
) -> None:
    """An error of the target never takes the source offline."""
    assert await sweep(1, share) > 100


async def test_move_short_copy_takes_the_target_offline_without_loss() -> None:
    for n in range(1, 200):
        fault = Fault(
            effect=DiskFault.SHORT_WRITE, errno=EIO, kinds=frozenset({"copy_from"}), nth=n
        )
        disks, manager, written, _ = await play_with(1, fault)
        if fault.hits == 0:
            assert n > 5
            return
        assert [log_dir.is_online for log_dir in manager.dirs()] == [True, False]
        await check(disks, written, at_least=written.acked_end)
    pytest.fail("the run_workload never ended")


# --- the swap -------------------------------------------------------------------------------------

SUSPECT_MS = 20
#: Limit of a case, after which it fails.
PATIENCE_S = 60


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


class SwapCase:
    """A swap on two watched disks, with a fault at one operation on one disk."""

    def __init__(self, number: int, how: str, nth: int) -> None:
        self.disks = two_disks()
        self.vfss = watched(self.disks)
        self.clock = ManualClock()
        # Operations of a mover are timed by the real clock.
        self.timeout_ms = 100 if how == "hangs-permanently" else 60_000
        self.manager = manager_on(
            *self.vfss,
            channel=LogDirFailureChannel(max_dirs=2),
            clock=self.clock,
            io_suspect_ms=SUSPECT_MS,
            io_timeout_ms=self.timeout_ms,
        )
        self.pool = MoverPool(threads=1, clock=self.clock)
        self.vfs, self.how, self.written = self.vfss[number], how, Written()
        dirs = self.manager.dirs()
        self.struck, self.other = dirs[number], dirs[1 - number]
        self.fault = Fault(
            effect=DiskFault.EIO if how in ("fails", "fills-up") else DiskFault.HANG,
            errno=ENOSPC if how == "fills-up" else EIO,
            nth=nth,
            # A disk that was full once has space for the way back; a failed disk stays failed.
            sticky=how == "fails",
        )

    async def play(self) -> OperatingError | None:
        """Run the swap, and return its error if it fails."""
        await self.manager.load()
        await caught_up(self.manager, self.written, self.pool)
        for log_dir in self.manager.dirs():
            log_dir.start_watches()
        self.vfs.inject(self.fault)
        swap = asyncio.ensure_future(self._promote())
        if self.fault.effect is DiskFault.HANG:
            await until(lambda: self.fault.hits > 0 or swap.done())
            if self.fault.hits:
                await self._hang(swap)
        async with asyncio.timeout(PATIENCE_S):
            return await swap

    async def _promote(self) -> OperatingError | None:
        async with self.pool.executor() as executor:
            try:
                await self.manager.promote_future(TP, executor)
            except OperatingError as e:
                return e
        return None

    async def _hang(self, swap: asyncio.Future[OperatingError | None]) -> None:
        """Apply the case's effect to the hung operation, and to the other disk."""
        if self.how == "waits-while-the-other-stalls":
            self.other.suspect("a neighbour")
            self.vfs.release()
            return
        if self.how == "hangs-while-the-other-comes-back":
            settling = asyncio.ensure_future(self._come_back())
            await settle()
            self.vfs.release()
            await settling
            return
        self.clock.ms += SUSPECT_MS + 1
        # An operation that hangs in a mover's thread does not stall the directory.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                while self.struck.state is LogDirState.ONLINE and not swap.done():
                    await asyncio.sleep(0.001)
        if self.how == "hangs-permanently":
            self.clock.ms += self.timeout_ms
        else:
            self.vfs.release()

    async def _come_back(self) -> None:
        """Fail the other directory, and reattach it."""
        number, arrivals = self.vfss.index(self.vfs), self.manager.arrivals
        self.other.go_offline("its cable was pulled")
        self.manager.drop(self.other)
        dead, path = self.other, self.other.path
        self.other = open_dir(self.vfss[1 - number], path, 2 - number, clock=self.clock)
        loaded = await arrivals.load(self.other, lambda _: None)
        arrival = arrivals.install(
            loaded, replaces=dead, is_taken=lambda tp: self.manager.get(tp) is not None
        )
        await arrivals.settle(arrival)

    async def append_afterwards(self) -> LogHandle | None:
        """Append to the current replica and return it, or None if its directory is OFFLINE."""
        if self.how != "hangs-permanently":
            self.vfs.clear()
        for log_dir in self.manager.offline_dirs():
            self.manager.drop(log_dir)
        handle = self.manager.get(TP)
        if handle is not None:
            if handle.log_dir is self.other:
                self.other.absolve()
            await until(lambda: self._is_well(handle.log_dir))
            async with asyncio.timeout(PATIENCE_S):
                await append(handle, self.written, random.Random(3), handle.latest_epoch + 1)
        return handle

    def _is_well(self, log_dir: LogDir) -> bool:
        if log_dir.state is LogDirState.SATURATED:
            log_dir.check_disk()
        return log_dir.state is LogDirState.ONLINE

    async def restart(self) -> None:
        """Restart without a clean stop, after the hung operation has ended."""
        self.vfs.clear()
        self.other.absolve()
        dirs = self.manager.dirs()
        await until(lambda: not any(log_dir.is_busy for log_dir in dirs))
        self.pool.close()
        for log_dir in dirs:
            log_dir.close()
        await check(self.disks, self.written, at_least=self.written.acked_end)


@pytest.mark.parametrize("number", [0, 1], ids=["source", "target"])
async def test_swap_with_a_hung_operation_keeps_all_records_if_the_other_disk_returns(
    number: int,
) -> None:
    """At most one replica is current, no move targets its directory, and no record is lost."""
    for n in range(1, 400):
        case = SwapCase(number, "hangs-while-the-other-comes-back", n)
        await case.play()
        if case.fault.hits == 0:
            assert n > 10
            return
        handle = await case.append_afterwards()
        future = case.manager.future(TP)
        assert handle is None or future is None or future.log_dir is not handle.log_dir, n
        await case.restart()
    pytest.fail("the swap never ended")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize(
    "how",
    ["fails", "fills-up", "hangs-a-while", "hangs-permanently", "waits-while-the-other-stalls"],
)
async def test_swap_fault_at_any_operation_keeps_one_copy_with_all_records(
    how: str, number: int
) -> None:
    """One copy accepts appends or its directory is OFFLINE; a restart loses no record."""
    for n in range(1, 400):
        case = SwapCase(number, how, n)
        error = await case.play()
        if case.fault.hits == 0:
            assert error is None and n > 10, (n, error)
            return
        handle = await case.append_afterwards()
        source, target = case.manager.dirs()
        if error is None:
            assert handle is None or handle.log_dir is target, n
            assert handle is not None or not target.is_online, n
        else:
            assert handle is None or handle.log_dir is source, n
            assert handle is not None or not source.is_online, (n, error)
        if how in ("hangs-a-while", "waits-while-the-other-stalls"):
            assert source.is_online and target.is_online, (n, error)
        await case.restart()
    pytest.fail("the swap never ended")
