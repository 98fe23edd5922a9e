"""A probe brings its bytes to the disk and leaves nothing behind, whatever happens."""

from __future__ import annotations

import pytest

from kraftjbod.storage.dirs.write_probe import write_probe
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs


def seen_by(vfs: FaultVfs) -> list[str]:
    kinds: list[str] = []
    vfs.on_operation = lambda kind, path: kinds.append(kind)
    write_probe(vfs, "/d1")
    vfs.on_operation = None
    return kinds


def test_it_writes_syncs_and_removes():
    vfs = FaultVfs(MemVfs())
    vfs.make_dirs("/d1")
    kinds = seen_by(vfs)
    assert kinds.index("write_at") < kinds.index("sync") < kinds.index("unlink_if_exists")
    assert vfs.list_dir("/d1") == []


@pytest.mark.parametrize("kind", ["write_at", "sync"])
def test_what_fails_leaves_nothing(kind: str):
    vfs = FaultVfs(MemVfs())
    vfs.make_dirs("/d1")
    vfs.inject(Fault(kinds=frozenset({kind})))
    with pytest.raises(OSError, match="error"):
        write_probe(vfs, "/d1")
    assert vfs.list_dir("/d1") == []
