"""Truncation of a damaged log tail, which makes the voter mute; with crashes and failing disks."""

from __future__ import annotations

import random
from errno import EIO, ENOSPC

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.raft.log.damaged_end import may_give_up
from kraftjbod.raft.log.log_store import RaftLogStore, StoredLog
from kraftjbod.raft.machine.messages import Entry, HardState, node
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.vfs_fault import WRITING_KINDS, Fault, FaultVfs

ROOT = "/meta"
DIRECTORY = "/meta/__cluster_metadata-0"
TERM = 4
ENTRIES = [Entry(offset, 1 + offset // 8, b"%03d" % offset * 20) for offset in range(24)]


def _open(vfs: Vfs, *, gives_up: bool = True) -> tuple[RaftLogStore, StoredLog]:
    store = RaftLogStore(vfs=vfs, directory=DIRECTORY, segment_bytes=700, retained_entries=100)
    return store, store.open(lambda _: gives_up)


def _written(*, snapshot_at: int | None = None) -> MemVfs:
    vfs = MemVfs()
    vfs.make_dirs(ROOT)
    vfs.sync_dir("/")
    store, _ = _open(vfs)
    store.write_hard_state(HardState(term=TERM, voted_for=node(2)))
    for at in range(0, len(ENTRIES), 2):
        store.append_entries(ENTRIES[at : at + 2], 17)
    if snapshot_at is not None:
        part = store.begin_snapshot(snapshot_at, ENTRIES[snapshot_at].term)
        part.append_piece(b"state")
        store.install_snapshot(part.finish())
    store.close()
    return vfs


def _rot(vfs: MemVfs, offset: int) -> None:
    """Change one byte of the entry's payload."""
    for name in _names(vfs, ".log"):
        file = vfs.open(f"{DIRECTORY}/{name}", OpenMode.READ_WRITE)
        at = bytes(file.read_at(0, file.size())).find(ENTRIES[offset].payload)
        if at >= 0:
            file.write_at(at, [b"?"])
            file.sync()
    vfs.sync_dir(DIRECTORY)


def _names(vfs: Vfs, suffix: str) -> list[str]:
    return sorted(i.name for i in vfs.list_dir(DIRECTORY) if i.name.endswith(suffix))


def _image(vfs: Vfs) -> dict[str, bytes | None]:
    return {name: vfs.read_if_exists(f"{DIRECTORY}/{name}") for name in _names(vfs, "")}


@pytest.mark.parametrize("offset", [0, 5, 13, 21])
def test_damaged_tail_is_truncated_and_copied_aside_and_the_voter_is_mute(offset: int) -> None:
    vfs = _written()
    _rot(vfs, offset)
    store, stored = _open(vfs)
    assert stored.hard_state == HardState(term=TERM + 1, mute_before_term=TERM + 1)
    assert stored.entries == tuple(ENTRIES[:offset])
    assert "the rest of the log was discarded" in stored.warnings[0]
    aside = b"".join(vfs.read_if_exists(f"{DIRECTORY}/{n}") or b"" for n in _names(vfs, ".damaged"))
    assert all(entry.payload in aside for entry in ENTRIES[offset + 1 :])
    # Entries of a leader replace the tail; the next start finds no damage and the same mute state.
    store.append_entries([Entry(offset, 5, b"new")], 17)
    store.close()
    again = _open(vfs, gives_up=False)[1]
    assert (again.hard_state, again.last_offset) == (stored.hard_state, offset)
    assert not again.warnings


def test_missing_segment_counts_as_a_damaged_tail() -> None:
    vfs = _written()
    first, second, *_ = _names(vfs, ".log")
    vfs.unlink_if_exists(f"{DIRECTORY}/{second}")
    stored = _open(vfs)[1]
    assert stored.last_offset == int(second.removesuffix(".log")) - 1
    assert stored.hard_state.mute_before_term == TERM + 1
    assert _names(vfs, ".log") == [first]


@pytest.mark.parametrize("how", ["rotten", "shorter", "gone"])
def test_damaged_last_append_after_a_stop_is_no_unfinished_write(how: str) -> None:
    """No entry follows, but the stop has noted the end of the log."""
    vfs = _written()
    names = _names(vfs, ".log")
    if how == "rotten":
        _rot(vfs, 23)
    elif how == "shorter":
        file = vfs.open(f"{DIRECTORY}/{names[-1]}", OpenMode.READ_WRITE)
        file.truncate(0)
        file.sync()
    else:
        for name in names:
            vfs.unlink_if_exists(f"{DIRECTORY}/{name}")
    with pytest.raises(StartupError, match="synced"):
        _open(vfs, gives_up=False)
    stored = _open(vfs)[1]
    assert stored.hard_state.mute_before_term == TERM + 1
    left = {"rotten": 23, "shorter": int(names[-1].removesuffix(".log")), "gone": 0}[how]
    assert stored.entries == tuple(ENTRIES[:left])


def test_damage_below_a_snapshot_keeps_the_snapshot() -> None:
    vfs = _written(snapshot_at=15)
    _rot(vfs, 3)
    stored = _open(vfs)[1]
    assert stored.snapshot is not None
    assert (stored.snapshot.last_offset, stored.entries, stored.last_offset) == (15, (), 15)
    assert stored.hard_state.mute_before_term == TERM + 1, "what followed it is gone"


@pytest.mark.parametrize("spoiled", ["others", "quorum-state", "no quorum-state", "snapshot"])
def test_damage_that_must_not_be_truncated_stops_the_start_without_changes(spoiled: str) -> None:
    """The other voters forbid it, the vote is unreadable, or no snapshot precedes the log."""
    vfs = _written(snapshot_at=15)
    _rot(vfs, 19)
    state = f"{DIRECTORY}/quorum-state"
    if spoiled == "quorum-state":
        text = bytes(vfs.read_if_exists(state) or b"").replace(b": 4,", b": 6,")
        file = vfs.open(state, OpenMode.READ_WRITE)
        file.write_at(0, [text])
    elif spoiled == "no quorum-state":
        vfs.unlink_if_exists(state)
    elif spoiled == "snapshot":
        vfs.unlink_if_exists(f"{DIRECTORY}/{_names(vfs, '.checkpoint')[0]}")
        vfs.unlink_if_exists(f"{DIRECTORY}/{_names(vfs, '.log')[0]}")
    before = _image(vfs)
    with pytest.raises(StartupError):
        _open(vfs, gives_up=spoiled != "others")
    assert _image(vfs) == before


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
def test_may_give_up_damaged_end_requires_that_other_voters_are_a_majority(voters: int) -> None:
    among = VoterSet.of_keys(map(node, range(1, voters + 1)))
    assert may_give_up(among, node(1)) == (voters >= 3)
    assert not may_give_up(VoterSet(), node(1)), "no voters"


@pytest.mark.parametrize("error", [EIO, ENOSPC])
@each_case("seed", range(4))
def test_voter_is_mute_after_an_interrupted_truncation_of_a_damaged_tail_and_a_restart(
    seed: int, error: int
) -> None:
    """Each operation fails in turn, with or without a power cut: the log is unchanged or mute."""
    rng = random.Random(seed)
    offset = rng.randrange(20)
    for nth in range(1, 100):
        inner = _written(snapshot_at=rng.choice([None, 9]))
        _rot(inner, offset)
        faulty = FaultVfs(inner)
        fault = faulty.inject(Fault(errno=error, kinds=WRITING_KINDS, nth=nth))
        try:
            _open(faulty)
        except OSError:
            assert fault.hits
        left = inner.crash_clone(rng.randrange(2**32)) if error == EIO else inner
        try:
            stored = _open(left, gives_up=False)[1]
        except StartupError:
            stored = _open(left)[1]
        assert stored.hard_state.mute_before_term > TERM
        assert stored.hard_state.term == stored.hard_state.mute_before_term
        covered = -1 if stored.snapshot is None else stored.snapshot.last_offset
        assert stored.last_offset == max(offset - 1, covered)
        if not fault.hits:
            return
    raise AssertionError("it never ran through")
