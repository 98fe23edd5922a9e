"""Cold segments are read again: what rots is found, logged once, and nothing sound is touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.dir_names import SCRUB_FILE
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.scrubbing.scrub import Scrub
from kraftjbod.storage.scrubbing.scrub_state import ScrubState, parse_scrub_state
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    ManualClock,
    batch,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)
from tests.faults.vfs_fault import Effect, Fault, FaultVfs
from tests.unit.broker.gates import until

BATCHES = 24
PER_SEGMENT = 8
BODY = bytes(150)
SIZE = len(batch(body=BODY))
CONFIG = TopicConfig(segment_bytes=PER_SEGMENT * SIZE, index_interval_bytes=2 * SIZE)
TPS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
FAST = 1 << 40


class Rig:
    """A dir with three replicas of two closed segments each, and its scrub."""

    def __init__(self, vfs: Vfs, manager: LogManager, scrub: Scrub, clock: ManualClock) -> None:
        self.vfs = vfs
        self.manager = manager
        self.scrub = scrub
        self.clock = clock
        self.moving: set[TopicPartition] = set()
        self.is_busy = False
        self.met: list[TopicPartition] = []

    @property
    def log_dir(self) -> LogDir:
        return self.scrub.log_dir

    def handle(self, tp: TopicPartition = TPS[0]) -> LogHandle:
        handle = self.manager.get(tp)
        assert handle is not None
        return handle

    def flip(self, number: int, *, tp: TopicPartition = TPS[0], at: int = 100) -> None:
        """Spoil a bit of the ``number``-th batch on the disk."""
        segment, position = divmod(number, PER_SEGMENT)
        path = f"/d1/{tp}/{segment * PER_SEGMENT:020}.log"
        file = self.vfs.open(path, OpenMode.READ_WRITE)
        at += position * SIZE
        file.write_at(at, [bytes([file.read_at(at, 1)[0] ^ 0x40])])
        file.close()

    @property
    def saved(self) -> ScrubState:
        return parse_scrub_state(self.vfs.read_if_exists(f"/d1/{SCRUB_FILE}"))


@asynccontextmanager
async def scrubbing(
    vfs: Vfs | None = None, *, interval_ms: int = 1_000, rate: int = FAST, flushed: bool = True
) -> AsyncIterator[Rig]:
    vfs = vfs or MemVfs()
    format_dir(vfs, "/d1", 1)
    clock = ManualClock()
    log_dir = open_dir(vfs, clock=clock)
    manager = manager_of([log_dir], CONFIG, clock)
    await manager.load()
    for number, tp in enumerate(TPS):
        handle = await manager.create(tp, TopicId(bytes([9] * 15 + [number])))
        for _ in range(BATCHES):
            data = batch(body=BODY)
            await handle.append_as_leader(data, headers_of(data), 0)
        if flushed:
            await handle.flush()
    scrub = Scrub(
        log_dir,
        clock=clock,
        replicas=lambda: [h.topic_partition for h in manager.handles_in(log_dir)],
        get=manager.get,
        is_moving=lambda tp: tp in rig.moving,
        is_busy=lambda: rig.is_busy,
        on_damage=lambda handle: rig.met.append(handle.topic_partition),
        interval_ms=interval_ms,
        max_bytes_per_second=rate,
    )
    rig = Rig(vfs, manager, scrub, clock)
    yield rig


async def a_while(rig: Rig) -> None:
    """Long enough for the scrub to read all there is, if it did not wait."""
    for _ in range(200):
        await rig.handle().refresh()


def events(reported: list[Any]) -> list[str]:
    return [line["event"] for line in reported]


async def test_a_pass_over_sound_logs_reads_every_closed_segment_and_says_so() -> None:
    async with scrubbing() as rig:
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        assert events(logged) == ["log_scrub_began", "log_scrub_completed"]
        figures = rig.scrub.figures
        assert (figures.segments, figures.passes) == (6, 1)
        assert figures.bytes == 6 * PER_SEGMENT * SIZE
        now_ms = rig.clock.now_ms()
        assert rig.saved == ScrubState(began_ms=now_ms, completed_ms=now_ms)
        assert rig.met == []


@pytest.mark.parametrize("number", range(2 * PER_SEGMENT))
async def test_damage_of_any_cold_batch_is_found_without_a_reader(number: int) -> None:
    async with scrubbing() as rig:
        rig.flip(number)
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        (found,) = [line for line in logged if line["event"] == "log_damage_found_by_scrub"]
        assert (found["partition"], found["offset"], found["log_level"]) == ("a-0", number, "error")
        assert events(logged).count("log_damaged") == 1
        assert rig.handle().damaged_from == number
        assert rig.met == [TPS[0]]
        assert rig.scrub.figures.damages_found == 1
        assert rig.saved.damages == 1
        assert rig.log_dir.is_online


async def test_every_damage_of_several_replicas_is_found() -> None:
    async with scrubbing() as rig:
        for number, tp in ((0, 0), (5, 0), (9, 0), (3, 2)):
            rig.flip(number, tp=TPS[tp])
        await rig.scrub.scrub_all()
        assert rig.scrub.figures.damages_found == 4
        assert [d.offset for d in rig.handle().view.damages] == [0, 5, 9]
        assert rig.handle(TPS[2]).damaged_from == 3
        # Told for each segment: whoever hears of it looks at the log.
        assert rig.met == [TPS[0], TPS[0], TPS[2]]


async def test_known_damage_is_reported_again_and_not_read_again() -> None:
    async with scrubbing() as rig:
        rig.flip(3)
        await rig.scrub.scrub_all()
        before = rig.scrub.figures.segments
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        assert rig.scrub.figures.segments == before + 5
        assert events(logged) == ["log_scrub_began", "log_scrub_completed"]
        assert rig.met == [TPS[0], TPS[0]]
        assert rig.scrub.state.damages == 0


async def test_what_was_truncated_counts_as_repaired() -> None:
    async with scrubbing() as rig:
        rig.flip(3)
        rig.flip(3, tp=TPS[1])
        await rig.scrub.scrub_all()
        rig.scrub.count_repairs()
        assert rig.scrub.figures.replicas_repaired == 0
        await rig.handle().truncate_to(3)
        # Gone is not repaired.
        await rig.manager.delete(TPS[1])
        rig.scrub.count_repairs()
        rig.scrub.count_repairs()
        assert rig.scrub.figures.replicas_repaired == 1


async def test_what_is_not_cold_is_left_alone() -> None:
    async with scrubbing(flushed=False) as rig:
        rig.flip(2)
        await rig.scrub.scrub_all()
        assert rig.scrub.figures.segments == 0
    async with scrubbing() as rig:
        # In the active segment.
        rig.flip(2 * PER_SEGMENT + 1)
        await rig.scrub.scrub_all()
        assert (rig.scrub.figures.segments, rig.scrub.figures.damages_found) == (6, 0)


async def test_a_replica_that_moves_waits_for_the_next_pass() -> None:
    async with scrubbing() as rig:
        rig.flip(2)
        rig.moving.add(TPS[0])
        await rig.scrub.scrub_all()
        assert (rig.scrub.figures.segments, rig.met) == (4, [])
        rig.moving.clear()
        await rig.scrub.scrub_all()
        assert rig.met == [TPS[0]]


async def test_a_reading_that_lied_is_reported_and_believed_by_nobody() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as rig:
        lie = Fault(
            effect=Effect.FLIPPED_BIT,
            kinds=frozenset({"read_at"}),
            path=f"/d1/a-1/{0:020}.log",
            sticky=False,
        )
        vfs.inject(lie)
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        assert lie.hits == 1
        (warning,) = [line for line in logged if line["log_level"] == "warning"]
        assert (warning["event"], warning["partition"]) == ("log_scrub_readings_differ", "a-1")
        assert rig.handle(TPS[1]).damaged_from is None
        assert rig.met == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_index_files_that_do_not_fit_are_written_anew(suffix: str) -> None:
    async with scrubbing() as rig:
        path = f"/d1/a-0/{PER_SEGMENT:020}{suffix}"
        sound = rig.vfs.read_if_exists(path)
        assert sound
        file = rig.vfs.open(path, OpenMode.READ_WRITE)
        file.write_at(3, [b"\x07"])
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        assert events(logged).count("log_index_mended") == 1
        assert rig.vfs.read_if_exists(path) == sound
        assert rig.scrub.figures.indexes_mended == 1
        assert rig.met == []


async def test_sound_offsets_around_the_damage_are_served_from_then_on() -> None:
    async with scrubbing() as rig:
        # The length of a batch: nothing follows by it.
        rig.flip(3, at=10)
        rig.log_dir._cached_reads = False
        await rig.scrub.scrub_all()
        (damage,) = rig.handle().view.damages
        assert damage.offset == 3
        found = await read_log(rig.handle(), damage.next_offset, 10_000, FAST, True)
        first = headers_of(found.records)[0]
        assert first.base_offset == damage.next_offset < PER_SEGMENT
        below = await read_log(rig.handle(), 0, 10_000, FAST, True)
        assert [h.base_offset for h in headers_of(below.records)] == [0, 1, 2]


async def test_a_log_that_was_truncated_meanwhile_believes_nothing() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as rig:
        rig.flip(6)
        truncated = asyncio.get_running_loop().create_future()
        reads = 0

        def on_operation(kind: str, path: str) -> None:
            nonlocal reads
            if kind == "read_at" and path == f"/d1/a-0/{0:020}.log":
                reads += 1
                if reads == 2 and not truncated.done():
                    loop.call_soon_threadsafe(truncated.set_result, None)

        loop = asyncio.get_running_loop()
        vfs.on_operation = on_operation
        passing = asyncio.ensure_future(rig.scrub.scrub_all())
        await truncated
        vfs.on_operation = None
        await rig.handle().truncate_to(5)
        await passing
        assert rig.handle().damaged_from is None
        assert rig.handle().log_end_offset == 5


async def test_deleted_replicas_are_passed_over() -> None:
    async with scrubbing() as rig:
        await rig.manager.delete(TPS[1])
        await rig.scrub.scrub_all()
        assert rig.scrub.figures.segments == 4


async def test_an_unreadable_sector_is_judged_as_any_read() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as rig:
        vfs.inject(Fault(kinds=frozenset({"read_at"}), path="/d1/a-1/*.log"))
        with pytest.raises(KafkaStorageError):
            await rig.scrub.scrub_all()
        assert rig.log_dir.state is LogDirState.OFFLINE


async def test_the_scrub_of_a_dir_that_died_ends() -> None:
    async with scrubbing(interval_ms=1) as rig:
        running = asyncio.ensure_future(rig.scrub.run())
        await until(lambda: rig.scrub.figures.passes > 0)
        rig.log_dir.go_offline("pulled")
        with capture_logs() as logged:
            await running
        assert events(logged) in ([], ["log_scrub_ended"])


async def test_it_rests_while_the_dir_is_busy_or_impaired() -> None:
    async with scrubbing(interval_ms=1) as rig:
        rig.is_busy = True
        running = asyncio.ensure_future(rig.scrub.scrub_all())
        await a_while(rig)
        assert rig.scrub.figures.bytes == 0
        rig.is_busy = False
        rig.log_dir.state = LogDirState.SATURATED
        await a_while(rig)
        assert rig.scrub.figures.bytes == 0
        rig.log_dir.state = LogDirState.ONLINE
        await running
        assert rig.scrub.figures.segments == 6


async def test_no_more_is_read_than_is_allowed() -> None:
    """The clock stands still, so what was overdrawn is never earned again."""
    segment = PER_SEGMENT * SIZE
    async with scrubbing(rate=3 * segment) as rig:
        running = asyncio.ensure_future(rig.scrub.scrub_all())
        await until(lambda: rig.scrub.figures.bytes == 4 * segment)
        await a_while(rig)
        assert rig.scrub.figures.bytes == 4 * segment
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def next_life(rig: Rig) -> Scrub:
    """What a daemon that starts on the same dir has."""
    return Scrub(
        rig.log_dir,
        clock=rig.clock,
        replicas=lambda: TPS,
        get=rig.manager.get,
        is_moving=lambda tp: False,
        is_busy=lambda: False,
        on_damage=lambda handle: rig.met.append(handle.topic_partition),
        interval_ms=1_000_000,
        max_bytes_per_second=FAST,
    )


async def test_a_restart_goes_on_where_the_last_life_was() -> None:
    async with scrubbing(rate=2 * PER_SEGMENT * SIZE) as rig:
        # Three segments are read, and then there is no more to spend.
        rig.clock.ms += 100_000
        running = asyncio.ensure_future(rig.scrub.scrub_all())
        await until(lambda: rig.scrub.figures.segments == 2)
        await rig.scrub._save()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        began_ms = rig.clock.wall_ms()
        assert rig.saved.began_ms == began_ms
        assert rig.saved.position == (TPS[0], 2 * PER_SEGMENT)
        later = next_life(rig)
        await later.load()
        assert later.state.is_under_way
        await later.scrub_all()
        assert later.figures.segments == 4
        assert rig.saved == ScrubState(began_ms=began_ms, completed_ms=began_ms)


async def test_a_pass_that_found_something_is_made_once_more_after_a_restart() -> None:
    """What was found lived in memory only."""
    async with scrubbing() as rig:
        rig.flip(3)
        await rig.scrub.scrub_all()
        assert rig.saved.damages == 1
        later = next_life(rig)
        await later.load()
        assert later.state.is_due(rig.clock.wall_ms(), 1_000_000)
        await later.scrub_all()
        assert later.state.damages == 0
        once_more = next_life(rig)
        await once_more.load()
        assert not once_more.state.is_due(rig.clock.wall_ms(), 1_000_000)


async def test_an_error_that_nobody_expected_costs_the_segment_that_it_came_with() -> None:
    vfs = FaultVfs(MemVfs())

    def see(kind: str, path: str) -> None:
        if kind == "read_at" and f"/{TPS[0]}/" in path:
            raise ZeroDivisionError(path)

    async with scrubbing(vfs) as rig:
        vfs.on_operation = see
        with capture_logs() as logged:
            await rig.scrub.scrub_all()
        vfs.on_operation = None
        assert rig.scrub.figures.segments == 2 * (len(TPS) - 1)
        assert rig.log_dir.jobs.failures == 2
        assert {e["partition"] for e in logged if e["event"] == "background_job_failed"} == {
            str(TPS[0])
        }
        assert rig.log_dir.is_online
