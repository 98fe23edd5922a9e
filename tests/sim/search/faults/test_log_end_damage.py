from __future__ import annotations

import random

import pytest

from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.machine.messages import Entry, HardState
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk
from kraftjbod.testing.simulation.world import World
from tests.sim.search.faults.log_end_damage import EndDamage, damage_log_end
from tests.sim.search.metadata_files import durable_entries

_ENTRIES = [Entry(offset, 1, b"%03d" % offset * 20) for offset in range(12)]


def _disk(host: str, entries: list[Entry], *, notes_end: bool) -> SimulatedDisk:
    """Return a disk with a log of one append per entry, written by a process that was killed."""
    disk = SimulatedDisk(World(1), host, f"/{host}", 1)
    disk.vfs.make_dirs(disk.path)
    store = RaftLogStore(
        vfs=disk.vfs,
        directory=f"{disk.path}/__cluster_metadata-0",
        segment_bytes=700,
        retained_entries=100,
    )
    store.open()
    store.write_hard_state(HardState(term=1))
    for entry in entries:
        store.append_entries([entry], 17)
    if notes_end:
        store.close()
    return disk


def _reopened(disk: SimulatedDisk) -> tuple[bool, int]:
    """Return whether the next start is mute, and its last offset."""
    store = RaftLogStore(
        vfs=disk.vfs,
        directory=f"{disk.path}/__cluster_metadata-0",
        segment_bytes=700,
        retained_entries=100,
    )
    stored = store.open(lambda _: True)
    return stored.hard_state.mute_before_term > 0, stored.last_offset


@pytest.mark.parametrize("notes_end", [True, False])
def test_damage_without_other_holders_is_always_recognized(*, notes_end: bool) -> None:
    found: set[str] = set()
    for seed in range(60):
        disk = _disk("one", _ENTRIES, notes_end=notes_end)
        other = _disk("other", _ENTRIES[:5], notes_end=False)
        damage = damage_log_end(disk, [other], 1, random.Random(seed))
        is_mute, last_offset = _reopened(disk)
        assert is_mute is (damage is not None)
        assert damage is None or damage.proven_end in (11, None)
        assert last_offset < 11 if is_mute else last_offset == 11
        found |= {kind for kind in EndDamage if damage is not None and kind in damage.text}
    assert found == (set(EndDamage) if notes_end else {EndDamage.FLIPPED})


def test_damage_of_entries_that_others_hold_is_sometimes_not_recognized() -> None:
    silent = 0
    for seed in range(60):
        disk = _disk("one", _ENTRIES, notes_end=False)
        others = [_disk(name, _ENTRIES, notes_end=False) for name in ("b", "c")]
        assert damage_log_end(disk, others, 2, random.Random(seed)) is not None
        is_mute, last_offset = _reopened(disk)
        silent += not is_mute
        assert last_offset < 11
    assert silent


def test_durable_entries_ignore_an_unsynced_write() -> None:
    disk = _disk("one", _ENTRIES, notes_end=False)
    last = durable_entries(disk)[-1]
    file = disk.vfs.open(last.path, OpenMode.READ_WRITE)
    file.write_at(last.position, [bytes(10)])
    assert len(durable_entries(disk)) == len(_ENTRIES)
