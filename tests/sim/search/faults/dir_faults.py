"""``DirFaults``: disks fail, hang, fill up, vanish or are replaced, and are healed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from kraftjbod.core.errors import CorruptRecordError, ErrorCode
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.record_batch import BatchHeader, batches
from kraftjbod.storage.dir_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    META_PROPERTIES,
    RESERVE_FILE,
    ReplicaDirKind,
    parse_replica_dir,
)
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import DISK_FAULTS, Fault, Kind
from tests.sim.search.faults.stage import Plays, Stage, wait

#: Around ``log.dir.io.suspect.ms``, and around ``log.dir.io.timeout.ms``.
_MOVE_HANGS_S: Final = ((0.5, 2.5), (2.0, 4.5), (4.0, 6.5))
_SWAP_LOOKS: Final = 200
_SWAP_LOOK_S: Final = 0.005
#: Delay after recovery until a late request or answer arrives.
_LATE_S: Final = 0.3
#: Time in which a follower sends a fetch, even if it waited for another answer before.
_ASKS_S: Final = (0.1, 0.8)
_SLOW_ANSWER_US: Final = (30_000, 90_000)
_SLOW_ANSWERS_S: Final = 0.4
#: Position in a batch from which its CRC covers the bytes.
_COVERED_FROM: Final = 21
_ROT_LOOKS_S: Final = 0.5
#: Number of scrubs after which each lost batch is detected.
_SCRUBS: Final = 2
#: Share of the bits that rot behind a page in memory.
_ROT_BEHIND_CACHE: Final = 0.5
_RESTARTS: Final = 0.5
#: Share of the failed writebacks after which pages leave memory before the directory is back.
_MEMORY_SHORT: Final = 0.3
#: Share of them that a power cut follows, and for how long the directory is in use before.
_POWER_CUTS: Final = 0.5
_IN_USE_S: Final = (0.1, 4.0)
#: Limit of replicas whose directories are removed together.
_MOST_REMOVED: Final = 3
#: Number of looks for directories of deleted replicas, which exist for a second or two.
_REMAINS_LOOKS: Final = 60
_REMAINS_LOOK_S: Final = 0.05


class DirFaults:
    """Faults of one directory at a time; a move concerns two."""

    def __init__(self, stage: Stage, operator: OperatorWork) -> None:
        self._stage = stage
        self._operator = operator
        #: Number of rotten bits so far.
        self.rotted = 0

    def plays(self) -> Plays:
        return {
            Kind.EIO: self._break_dir,
            Kind.LOST_TAIL: self._break_dir,
            Kind.VANISH: self._break_dir,
            Kind.EIO_ONCE: self._disturb_dir,
            Kind.HANG: self._disturb_dir,
            Kind.SLOW: self._disturb_dir,
            Kind.FULL: self._disturb_dir,
            Kind.CLUTTER: self._list_again,
            Kind.WRITEBACK: self._fail_writeback,
            Kind.UNREPORTED_EIO: self._unreported_eio,
            Kind.WIPE: self._wipe,
            Kind.MOVE_HANG: self._hang_move,
            Kind.ROT: self._rot,
            Kind.ROT_BESIDE: self._rot_beside,
            Kind.LOST_END: self._lose_end,
            Kind.REPLICA_REMOVED: self._remove_replicas,
            Kind.REMAINS_REMOVED: self._remove_remains,
        }

    async def _break_dir(self, fault: Fault) -> None:
        """Keep the fault until the broker has noticed it, and for a while after that."""
        disk = self._stage.disk(fault)
        disk.faults.begin_fault(DISK_FAULTS[fault.kind])
        is_noticed = await self._stage.until_offline_or_end(fault)
        await wait(fault)
        if fault.kind is Kind.LOST_TAIL and is_noticed:
            disk.power_cut()
        disk.faults.heal()
        await self._operator.until_back(fault)

    async def _disturb_dir(self, fault: Fault) -> None:
        disk = self._stage.disk(fault)
        disk.faults.begin_fault(DISK_FAULTS[fault.kind])
        await wait(fault)
        disk.faults.heal()
        await self._stage.until_results_arrived(fault)
        await self._operator.until_back(fault)

    async def _list_again(self, fault: Fault) -> None:
        """Add names of another program. Often restart the broker, which lists directories then."""
        disk = self._stage.disk(fault)
        disk.faults.begin_fault(DiskFault.CLUTTER)
        if fault.rng().random() < _RESTARTS:
            async with self._stage.broker_down(fault.broker):
                await self._stage.stop_host(self._stage.host(fault))
        await wait(fault)
        disk.faults.heal(DiskFault.CLUTTER)
        await self._operator.until_back(fault)

    async def _fail_writeback(self, fault: Fault) -> None:
        """Fail a sync: until memory is short or power is cut, the page cache shows lost bytes."""
        rng, disk = fault.rng(), self._stage.disk(fault)
        disk.faults.begin_fault(DiskFault.WRITEBACK)
        await self._stage.until_offline_or_end(fault)
        await wait(fault)
        disk.faults.heal(DiskFault.WRITEBACK)
        if rng.random() < _MEMORY_SHORT:
            disk.vfs.drop_caches()
        await self._operator.until_back(fault)
        if rng.random() < _POWER_CUTS:
            await asyncio.sleep(rng.uniform(*_IN_USE_S))
            async with self._stage.broker_down(fault.broker):
                self._stage.host(fault).power_cut()
            await self._operator.until_back(fault)

    async def _unreported_eio(self, fault: Fault) -> None:
        """Request the reattachment while the controller, which was not notified, is still down."""
        disk = self._stage.disk(fault)
        async with self._stage.without_controller(fault):
            disk.faults.begin_fault(DiskFault.EIO)
            is_noticed = await self._stage.until_offline_or_end(fault)
            if fault.rng().random() < 0.7 and is_noticed:
                disk.power_cut()
            disk.faults.heal()
            asking = asyncio.create_task(self._operator.order_once(fault, "reattach"))
            await wait(fault)
        await asking
        await self._operator.until_back(fault)

    async def _wipe(self, fault: Fault) -> None:
        """Wipe a disk. Sometimes late requests of old replicas arrive after those of new ones."""
        rng = fault.rng()
        me = self._stage.host(fault).name
        others = [host.name for host in self._stage.cluster.brokers.values() if host.name != me]
        is_late, other = rng.random() < 0.6, rng.choice(others)
        if is_late:
            async with self._late(me, other, rng):
                await self._replace(fault)
        else:
            await self._replace(fault)
        await self._operator.until_back(fault)

    async def _replace(self, fault: Fault) -> None:
        view, path = self._stage.view, self._stage.path(fault)
        old = view.online_id(fault.broker, path)
        self._stage.disk(fault).faults.begin_fault(DiskFault.WIPE)
        await self._stage.until_offline_or_end(fault)
        await wait(fault)
        await self._operator.forget(
            fault,
            # A broker that died meanwhile accepts the empty disk as a new one at its start.
            unless=lambda: view.online_id(fault.broker, path) not in (None, old),
        )
        await self._operator.order(fault, "add", but=ErrorCode.INVALID_REQUEST)

    @asynccontextmanager
    async def _late(self, me: str, other: str, rng: random.Random) -> AsyncIterator[None]:
        """Delay the requests from ``me`` to ``other``, and then the answers."""
        network = self._stage.cluster.network
        network.partition(me, other, one_way=True)
        await asyncio.sleep(rng.uniform(*_ASKS_S))
        yield
        await asyncio.sleep(rng.random() * _LATE_S)
        undo = network.link(other, me).slow(*_SLOW_ANSWER_US)
        network.heal(me, other)
        await asyncio.sleep(_SLOW_ANSWERS_S)
        undo()

    async def _hang_move(self, fault: Fault) -> None:
        """Hang at the final rename of a move, on the target disk or on both disks.

        The target disk is healed last.
        """
        rng, here = fault.rng(), self._stage.path(fault)
        paths = self._stage.host(fault).log_dirs
        source, target = here, rng.choice([one for one in paths if one != here])
        moved = self._stage.replicas_in(fault.broker, source)
        await self._operator.move_to(fault.broker, target, moved)
        taking, giving = self._stage.cluster.disks[target], self._stage.cluster.disks[source]
        first = giving if rng.random() < 0.6 else taking
        first.faults.hang_at_swap()
        for _ in range(_SWAP_LOOKS):
            if first.gate.is_closed:
                break
            await asyncio.sleep(_SWAP_LOOK_S)
        taking.faults.begin_fault(DiskFault.HANG)
        await asyncio.sleep(rng.uniform(*rng.choice(_MOVE_HANGS_S)))
        giving.faults.heal(DiskFault.HANG)
        await asyncio.sleep(rng.random() * _LATE_S)
        taking.faults.heal(DiskFault.HANG)
        await self._operator.until_back(fault)
        await self._operator.until_back(replace(fault, dir=paths.index(target)))

    async def _rot(self, fault: Fault) -> None:
        """Keep the fault until no replica of the broker has the rotten bit. A move may copy it."""
        rng, path = fault.rng(), self._stage.path(fault)
        found = sorted(closed_segments(self._stage.disk(fault).vfs, path))
        if not found:
            self._stage.note(f"{path} has no closed segment")
            return
        segment = rng.choice(found)
        file = self._stage.disk(fault).vfs.open(segment, OpenMode.READ_WRITE)
        sound = sound_batches(file.on_disk())
        if not sound:
            self._stage.note(f"{segment} is damaged already")
            return
        at, header = rng.choice(sound)
        position = at + rng.randrange(_COVERED_FROM, header.size_bytes)
        file.rot(position, is_cached=rng.random() < _ROT_BEHIND_CACHE)
        self.rotted += 1
        rotten = file.on_disk()[at : at + header.size_bytes]
        self._stage.note(f"{segment} is rotten from {at} on, offset {header.base_offset}")
        named = parse_replica_dir(segment.split("/")[-2])
        if named is not None and named.topic_partition is not None:
            self._stage.rotten.append((named.topic_partition, header.base_offset))
        while any(rotten in data for data in self._replicas_of(fault.broker)):
            self._stage.start(fault.broker)
            await asyncio.sleep(_ROT_LOOKS_S)

    async def _rot_beside(self, fault: Fault) -> None:
        """Rot files that the broker reads at its start, while it is down."""
        rng, path, vfs = fault.rng(), self._stage.path(fault), self._stage.disk(fault).vfs
        async with self._stage.broker_down(fault.broker):
            self._stage.host(fault).kill()
            found = [name for name in files_beside(vfs, path) if _size(vfs, name) > 0]
            for name in rng.sample(found, min(len(found), rng.randint(1, 2))):
                position = rng.randrange(_size(vfs, name))
                vfs.open(name, OpenMode.READ_WRITE).rot(position)
                self._stage.note(f"{name} is rotten at {position}")
            await wait(fault)
        await self._operator.until_back(fault)

    async def _lose_end(self, fault: Fault) -> None:
        rng, path, vfs = fault.rng(), self._stage.path(fault), self._stage.disk(fault).vfs
        async with self._stage.broker_down(fault.broker):
            await self._end(fault, is_clean=rng.random() < 0.5)
            found = [logs for one in replica_dirs(vfs, path) if (logs := segments(vfs, one))]
            if found:
                self._cut(vfs, rng.choice(found), rng)
            await wait(fault)
        await self._operator.until_back(fault)
        await self._until_scrubbed(fault)

    async def _until_scrubbed(self, fault: Fault) -> None:
        """Wait for two scrubs: the first one may have checked the lost batches before the loss.

        No start checks the middle of a log, so without a reader the copy differs until then.
        """
        path, cluster = self._stage.path(fault), self._stage.cluster
        began_ms, scrubbed_ms = cluster.now_ms, set[int]()
        while len(scrubbed_ms) < _SCRUBS:
            self._stage.start(fault.broker)
            await asyncio.sleep(_ROT_LOOKS_S)
            for event in cluster.trace.events:
                if event["event"] == "log_scrub_completed" and event["log_dir"] == path:
                    scrubbed_ms |= {event["at_ms"]} if event["at_ms"] >= began_ms else set()

    async def _end(self, fault: Fault, *, is_clean: bool) -> None:
        if is_clean:
            await self._stage.stop_host(self._stage.host(fault))
        else:
            self._stage.host(fault).kill()

    def _cut(self, vfs: MemVfs, logs: list[str], rng: random.Random) -> None:
        """Remove one whole segment of ``logs``, or cut one of them at a batch boundary."""
        name = rng.choice(logs)
        if rng.random() < 0.3 and len(logs) > 1:
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                vfs.unlink_if_exists(name.removesuffix(LOG_SUFFIX) + suffix)
            vfs.sync_dir(name.rpartition("/")[0])
            self._stage.note(f"{name} is gone")
            return
        file = vfs.open(name, OpenMode.READ_WRITE)
        ends = [position for position, _ in sound_batches(bytes(file.data))]
        if ends:
            file.truncate(rng.choice(ends))
            file.sync()
            self._stage.note(f"{name} ends at {file.size()}")

    async def _remove_replicas(self, fault: Fault) -> None:
        """Remove directories of replicas. Restart the broker if it does not notice the loss."""
        rng, path = fault.rng(), self._stage.path(fault)
        self._remove_some(fault, (ReplicaDirKind.CURRENT, ReplicaDirKind.FUTURE), rng)
        await wait(fault)
        if self._stage.view.dir_state(fault.broker, path) is LogDirState.ONLINE:
            async with self._stage.broker_down(fault.broker):
                await self._end(fault, is_clean=rng.random() < _RESTARTS)
        await self._operator.until_back(fault)

    async def _remove_remains(self, fault: Fault) -> None:
        """Remove directories of deleted and stray replicas, once there are any."""
        rng, kinds = fault.rng(), (ReplicaDirKind.DELETE, ReplicaDirKind.STRAY)
        for _ in range(_REMAINS_LOOKS):
            if self._remove_some(fault, kinds, rng):
                break
            await asyncio.sleep(_REMAINS_LOOK_S)

    def _remove_some(
        self, fault: Fault, kinds: Collection[ReplicaDirKind], rng: random.Random
    ) -> bool:
        """Remove some directories of ``kinds``; return whether there were any."""
        path, vfs = self._stage.path(fault), self._stage.disk(fault).vfs
        found = replica_dirs(vfs, path, kinds)
        for directory in rng.sample(found, min(len(found), rng.randint(1, _MOST_REMOVED))):
            self._stage.note(f"{directory} is removed")
            vfs.remove_tree(directory)
        if found:
            vfs.sync_dir(path)
        return bool(found)

    def _replicas_of(self, broker: int) -> Iterator[bytes]:
        """Yield the content of the segments of its replicas, including future replicas."""
        for path in self._stage.cluster.brokers[broker].log_dirs:
            vfs = self._stage.cluster.disks[path].vfs
            for directory in replica_dirs(vfs, path):
                for name in segments(vfs, directory):
                    yield vfs.open(name, OpenMode.READ).on_disk()


def sound_batches(data: bytes) -> list[tuple[int, BatchHeader]]:
    """Return positions and headers of the batches before the first damage, as after a power cut."""
    found: list[tuple[int, BatchHeader]] = []
    with suppress(CorruptRecordError):
        found.extend(batches(data))
    return found


def replica_dirs(
    vfs: MemVfs,
    path: str,
    kinds: Collection[ReplicaDirKind] = (ReplicaDirKind.CURRENT, ReplicaDirKind.FUTURE),
) -> list[str]:
    """Return the directories of ``kinds`` below ``path``."""
    named = {
        entry.name: parse_replica_dir(entry.name)
        for entry in (vfs.list_dir(path) if vfs.is_dir(path) else ())
        if entry.is_dir
    }
    return [
        f"{path}/{name}" for name, one in named.items() if one is not None and one.kind in kinds
    ]


def files_beside(vfs: MemVfs, path: str) -> list[str]:
    """Return files of a directory and of its replicas that contain no records.

    The file with the directory's id is left out: only an operator can say which disk that is.
    """
    places = [path, *replica_dirs(vfs, path)]
    return [
        f"{place}/{entry.name}"
        for place in places
        for entry in (vfs.list_dir(place) if vfs.is_dir(place) else ())
        if not entry.is_dir
        and not entry.is_link
        and not entry.name.endswith(LOG_SUFFIX)
        and entry.name not in (META_PROPERTIES, RESERVE_FILE)
    ]


def _size(vfs: MemVfs, name: str) -> int:
    return vfs.open(name, OpenMode.READ).size()


def segments(vfs: MemVfs, directory: str) -> list[str]:
    """Return the segment files, oldest first."""
    names = sorted(entry.name for entry in vfs.list_dir(directory))
    return [f"{directory}/{name}" for name in names if name.endswith(LOG_SUFFIX)]


def closed_segments(vfs: MemVfs, path: str) -> list[str]:
    """Return the closed segments of all replicas below ``path``."""
    found = [name for one in replica_dirs(vfs, path) for name in segments(vfs, one)[:-1]]
    return [name for name in found if vfs.open(name, OpenMode.READ).size() > 0]
