"""``Scrub``: periodic reading of closed segments, its findings, its pace and its state."""

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
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import (
    ManualClock,
    batch,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)
from tests.faults.vfs_fault import Fault, FaultVfs, without_cached_reads
from tests.unit.broker.gates import until

BATCHES = 24
PER_SEGMENT = 8
BODY = bytes(150)
SIZE = len(batch(body=BODY))
CONFIG = TopicConfig(segment_bytes=PER_SEGMENT * SIZE, index_interval_bytes=2 * SIZE)
TPS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
FAST = 1 << 40


class ScrubFixture:
    """A directory with three replicas of two closed segments each, and its scrub."""

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
        """Flip a bit in the ``number``-th batch on the disk."""
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
) -> AsyncIterator[ScrubFixture]:
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
        is_moving=lambda tp: tp in fixture.moving,
        is_busy=lambda: fixture.is_busy,
        on_damage=lambda handle: fixture.met.append(handle.topic_partition),
        interval_ms=interval_ms,
        max_bytes_per_second=rate,
    )
    fixture = ScrubFixture(vfs, manager, scrub, clock)
    yield fixture


async def wait_for_a_pass(fixture: ScrubFixture) -> None:
    """Wait long enough for an unlimited scrub to read all segments."""
    for _ in range(200):
        await fixture.handle().refresh()


def events(reported: list[Any]) -> list[str]:
    return [line["event"] for line in reported]


async def test_scrub_pass_over_sound_logs_reads_each_closed_segment() -> None:
    async with scrubbing() as fixture:
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        assert events(logged) == ["log_scrub_began", "log_scrub_completed"]
        figures = fixture.scrub.figures
        assert (figures.segments, figures.passes) == (6, 1)
        assert figures.bytes == 6 * PER_SEGMENT * SIZE
        now_ms = fixture.clock.now_ms()
        assert fixture.saved == ScrubState(began_ms=now_ms, completed_ms=now_ms)
        assert fixture.met == []


@each_case("number", range(2 * PER_SEGMENT))
async def test_scrub_finds_damage_in_any_closed_batch(number: int) -> None:
    async with scrubbing() as fixture:
        fixture.flip(number)
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        (found,) = [line for line in logged if line["event"] == "log_damage_found_by_scrub"]
        assert (found["partition"], found["offset"], found["log_level"]) == ("a-0", number, "error")
        assert events(logged).count("log_damaged") == 1
        assert fixture.handle().damaged_from == number
        assert fixture.met == [TPS[0]]
        assert fixture.scrub.figures.damages_found == 1
        assert fixture.saved.damages == 1
        assert fixture.log_dir.is_online


async def test_scrub_finds_all_damage_of_several_replicas() -> None:
    async with scrubbing() as fixture:
        for number, tp in ((0, 0), (5, 0), (9, 0), (3, 2)):
            fixture.flip(number, tp=TPS[tp])
        await fixture.scrub.scrub_all()
        assert fixture.scrub.figures.damages_found == 4
        assert [d.offset for d in fixture.handle().view.damages] == [0, 5, 9]
        assert fixture.handle(TPS[2]).damaged_from == 3
        # Reported once per segment; the callback examines the whole log.
        assert fixture.met == [TPS[0], TPS[0], TPS[2]]


async def test_scrub_reports_known_damage_again_without_reading_it() -> None:
    async with scrubbing() as fixture:
        fixture.flip(3)
        await fixture.scrub.scrub_all()
        before = fixture.scrub.figures.segments
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        assert fixture.scrub.figures.segments == before + 5
        assert events(logged) == ["log_scrub_began", "log_scrub_completed"]
        assert fixture.met == [TPS[0], TPS[0]]
        assert fixture.scrub.state.damages == 0


async def test_scrub_counts_truncated_damage_as_repaired() -> None:
    async with scrubbing() as fixture:
        fixture.flip(3)
        fixture.flip(3, tp=TPS[1])
        await fixture.scrub.scrub_all()
        fixture.scrub.count_repairs()
        assert fixture.scrub.figures.replicas_repaired == 0
        await fixture.handle().truncate_to(3)
        # A deleted replica is not repaired.
        await fixture.manager.delete(TPS[1])
        fixture.scrub.count_repairs()
        fixture.scrub.count_repairs()
        assert fixture.scrub.figures.replicas_repaired == 1


async def test_scrub_skips_unflushed_and_active_segments() -> None:
    async with scrubbing(flushed=False) as fixture:
        fixture.flip(2)
        await fixture.scrub.scrub_all()
        assert fixture.scrub.figures.segments == 0
    async with scrubbing() as fixture:
        # Damage in the active segment.
        fixture.flip(2 * PER_SEGMENT + 1)
        await fixture.scrub.scrub_all()
        assert (fixture.scrub.figures.segments, fixture.scrub.figures.damages_found) == (6, 0)


async def test_scrub_skips_a_moving_replica_until_the_next_pass() -> None:
    async with scrubbing() as fixture:
        fixture.flip(2)
        fixture.moving.add(TPS[0])
        await fixture.scrub.scrub_all()
        assert (fixture.scrub.figures.segments, fixture.met) == (4, [])
        fixture.moving.clear()
        await fixture.scrub.scrub_all()
        assert fixture.met == [TPS[0]]


async def test_scrub_ignores_a_wrong_read_that_does_not_repeat() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as fixture:
        lie = Fault(
            effect=DiskFault.ROT,
            kinds=frozenset({"read_at"}),
            path=f"/d1/a-1/{0:020}.log",
            sticky=False,
        )
        vfs.inject(lie)
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        assert lie.hits == 1
        (warning,) = [line for line in logged if line["log_level"] == "warning"]
        assert (warning["event"], warning["partition"]) == ("log_scrub_readings_differ", "a-1")
        assert fixture.handle(TPS[1]).damaged_from is None
        assert fixture.met == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_scrub_rewrites_wrong_index_files(suffix: str) -> None:
    async with scrubbing() as fixture:
        path = f"/d1/a-0/{PER_SEGMENT:020}{suffix}"
        sound = fixture.vfs.read_if_exists(path)
        assert sound
        file = fixture.vfs.open(path, OpenMode.READ_WRITE)
        file.write_at(3, [b"\x07"])
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        assert events(logged).count("log_index_mended") == 1
        assert fixture.vfs.read_if_exists(path) == sound
        assert fixture.scrub.figures.indexes_mended == 1
        assert fixture.met == []


async def test_scrub_makes_offsets_around_the_damage_readable() -> None:
    async with scrubbing(without_cached_reads(MemVfs())) as fixture:
        # The length of the batch is damaged, so that no walk leads past it.
        fixture.flip(3, at=10)
        await fixture.scrub.scrub_all()
        (damage,) = fixture.handle().view.damages
        assert damage.offset == 3
        found = await read_log(fixture.handle(), damage.next_offset, 10_000, FAST, True)
        first = headers_of(found.records)[0]
        assert first.base_offset == damage.next_offset < PER_SEGMENT
        below = await read_log(fixture.handle(), 0, 10_000, FAST, True)
        assert [h.base_offset for h in headers_of(below.records)] == [0, 1, 2]


async def test_scrub_discards_findings_of_a_log_truncated_meanwhile() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as fixture:
        fixture.flip(6)
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
        passing = asyncio.ensure_future(fixture.scrub.scrub_all())
        await truncated
        vfs.on_operation = None
        await fixture.handle().truncate_to(5)
        await passing
        assert fixture.handle().damaged_from is None
        assert fixture.handle().log_end_offset == 5


async def test_scrub_skips_deleted_replicas() -> None:
    async with scrubbing() as fixture:
        await fixture.manager.delete(TPS[1])
        await fixture.scrub.scrub_all()
        assert fixture.scrub.figures.segments == 4


async def test_scrub_read_error_takes_the_directory_offline() -> None:
    vfs = FaultVfs(MemVfs())
    async with scrubbing(vfs) as fixture:
        vfs.inject(Fault(kinds=frozenset({"read_at"}), path="/d1/a-1/*.log"))
        with pytest.raises(KafkaStorageError):
            await fixture.scrub.scrub_all()
        assert fixture.log_dir.state is LogDirState.OFFLINE


async def test_scrub_ends_when_its_directory_goes_offline() -> None:
    async with scrubbing(interval_ms=1) as fixture:
        running = asyncio.ensure_future(fixture.scrub.run_passes())
        await until(lambda: fixture.scrub.figures.passes > 0)
        fixture.log_dir.go_offline("pulled")
        with capture_logs() as logged:
            await running
        assert events(logged) in ([], ["log_scrub_ended"])


async def test_scrub_pauses_while_the_directory_is_busy_or_impaired() -> None:
    async with scrubbing(interval_ms=1) as fixture:
        fixture.is_busy = True
        running = asyncio.ensure_future(fixture.scrub.scrub_all())
        await wait_for_a_pass(fixture)
        assert fixture.scrub.figures.bytes == 0
        fixture.is_busy = False
        fixture.log_dir.state = LogDirState.SATURATED
        await wait_for_a_pass(fixture)
        assert fixture.scrub.figures.bytes == 0
        fixture.log_dir.state = LogDirState.ONLINE
        await running
        assert fixture.scrub.figures.segments == 6


async def test_scrub_limits_its_rate() -> None:
    """The clock does not advance, so the scrub never earns new allowance."""
    segment = PER_SEGMENT * SIZE
    async with scrubbing(rate=3 * segment) as fixture:
        running = asyncio.ensure_future(fixture.scrub.scrub_all())
        await until(lambda: fixture.scrub.figures.bytes == 4 * segment)
        await wait_for_a_pass(fixture)
        assert fixture.scrub.figures.bytes == 4 * segment
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def restarted(fixture: ScrubFixture) -> Scrub:
    """Create the scrub of a restarted daemon for the same directory."""
    return Scrub(
        fixture.log_dir,
        clock=fixture.clock,
        replicas=lambda: TPS,
        get=fixture.manager.get,
        is_moving=lambda tp: False,
        is_busy=lambda: False,
        on_damage=lambda handle: fixture.met.append(handle.topic_partition),
        interval_ms=1_000_000,
        max_bytes_per_second=FAST,
    )


async def test_scrub_after_a_restart_continues_at_the_saved_position() -> None:
    async with scrubbing(rate=2 * PER_SEGMENT * SIZE) as fixture:
        # Three segments are read, then the allowance is spent.
        fixture.clock.ms += 100_000
        running = asyncio.ensure_future(fixture.scrub.scrub_all())
        await until(lambda: fixture.scrub.figures.segments == 2)
        await fixture.scrub._save()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        began_ms = fixture.clock.wall_ms()
        assert fixture.saved.began_ms == began_ms
        assert fixture.saved.position == (TPS[0], 2 * PER_SEGMENT)
        later = restarted(fixture)
        await later.load()
        assert later.state.is_under_way
        await later.scrub_all()
        assert later.figures.segments == 4
        assert fixture.saved == ScrubState(began_ms=began_ms, completed_ms=began_ms)


async def test_scrub_after_a_restart_repeats_a_pass_with_findings() -> None:
    """Findings are kept in memory only."""
    async with scrubbing() as fixture:
        fixture.flip(3)
        await fixture.scrub.scrub_all()
        assert fixture.saved.damages == 1
        later = restarted(fixture)
        await later.load()
        assert later.state.is_due(fixture.clock.wall_ms(), 1_000_000)
        await later.scrub_all()
        assert later.state.damages == 0
        once_more = restarted(fixture)
        await once_more.load()
        assert not once_more.state.is_due(fixture.clock.wall_ms(), 1_000_000)


async def test_scrub_unexpected_error_skips_only_its_segment() -> None:
    vfs = FaultVfs(MemVfs())

    def see(kind: str, path: str) -> None:
        if kind == "read_at" and f"/{TPS[0]}/" in path:
            raise ZeroDivisionError(path)

    async with scrubbing(vfs) as fixture:
        vfs.on_operation = see
        with capture_logs() as logged:
            await fixture.scrub.scrub_all()
        vfs.on_operation = None
        assert fixture.scrub.figures.segments == 2 * (len(TPS) - 1)
        assert fixture.log_dir.jobs.failures == 2
        assert {e["partition"] for e in logged if e["event"] == "background_job_failed"} == {
            str(TPS[0])
        }
        assert fixture.log_dir.is_online
