"""The ``static-voters`` file: a log keeps its voters until it names them itself."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.log.static_voters import (
    STATIC_VOTERS,
    VOTER_DIRECTORIES,
    note_voters,
    require_same_voters,
)
from kraftjbod.raft.machine.messages import node
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs

ONE, THREE = VoterSet.of_keys([node(100)]), VoterSet.of_keys(map(node, (100, 101, 102)))
NAMED = VoterSet.of_keys([ReplicaKey(BrokerId(7), DirectoryId(b"d" * 16))])


@pytest.fixture
def vfs() -> MemVfs:
    made = MemVfs()
    made.make_dirs("/log")
    return made


def note(vfs: MemVfs, voters: VoterSet, **of_log: bool) -> None:
    unnoted = require_same_voters(vfs, "/log", voters, **of_log)
    assert unnoted is not None and not unnoted.can_wait
    note_voters(vfs, unnoted)


@pytest.mark.parametrize(("first", "then"), [(ONE, THREE), (THREE, ONE)])
def test_require_same_voters_refuses_other_voters_than_the_first(
    vfs: MemVfs, first: VoterSet, then: VoterSet
) -> None:
    note(vfs, first, is_new=True)
    require_same_voters(vfs, "/log", first, is_new=False)
    for is_new in (True, False):
        with pytest.raises(StartupError, match=r"another set of voters .* docs/controllers.md"):
            require_same_voters(vfs, "/log", then, is_new=is_new)
    require_same_voters(vfs, "/log", NAMED, is_new=False)
    note(vfs, then, is_new=False, is_fork=True)
    require_same_voters(vfs, "/log", then, is_new=False)


def test_require_same_voters_of_an_older_log_infers_one_or_several_voters(vfs: MemVfs) -> None:
    with pytest.raises(StartupError, match=r"names \[100, 101, 102\], but .* has had one voter"):
        require_same_voters(vfs, "/log", THREE, is_new=False)
    vfs.open(f"/log/{VOTER_DIRECTORIES}", OpenMode.CREATE)
    with pytest.raises(StartupError, match=r"names \[100\], but .* has had several voters"):
        require_same_voters(vfs, "/log", ONE, is_new=False)
    unnoted = require_same_voters(vfs, "/log", THREE, is_new=False)
    assert unnoted is not None and unnoted.can_wait
    note_voters(vfs, unnoted)
    vfs.unlink_if_exists(f"/log/{VOTER_DIRECTORIES}")
    require_same_voters(vfs, "/log", THREE, is_new=False)


def test_require_same_voters_names_the_expected_content_of_a_damaged_file(vfs: MemVfs) -> None:
    vfs.open(f"/log/{STATIC_VOTERS}", OpenMode.CREATE).write_at(0, [b"{"])
    with pytest.raises(StartupError, match=r"static-voters is damaged .* \[100, 101, 102\]"):
        require_same_voters(vfs, "/log", ONE, is_new=False)
