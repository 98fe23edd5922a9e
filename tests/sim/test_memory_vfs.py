"""MemVfs: what a power cut leaves. Its other rules are tried in unit/storage/test_vfs.py."""

from __future__ import annotations

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


def test_a_power_cut_leaves_what_was_synced_and_some_beginning_of_the_rest() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    file = vfs.open("/d/f", OpenMode.CREATE)
    file.write_at(0, [b"synced"])
    file.sync()
    vfs.sync_dir("/d")
    file.write_at(6, [b"-and-more"])
    vfs.open("/d/g", OpenMode.CREATE)
    left = [vfs.crash_clone(seed) for seed in range(50)]
    whole = b"synced-and-more"
    bytes_left = [clone.read_if_exists("/d/f") or b"" for clone in left]
    assert all(found[: len(whole)].startswith(b"synced") for found in bytes_left)
    assert {len(found) for found in bytes_left} >= {len(b"synced"), len(whole)}
    assert {clone.exists("/d/g") for clone in left} == {True, False}
    again = [vfs.crash_clone(seed).read_if_exists("/d/f") for seed in range(50)]
    assert again == bytes_left
    assert vfs.read_if_exists("/d/f") == whole
