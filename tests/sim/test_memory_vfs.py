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
    left = [vfs.crash_clone(seed) for seed in range(150)]
    whole = b"synced-and-more"
    bytes_left = [clone.read_if_exists("/d/f") or b"" for clone in left]
    assert all(found[: len(whole)].startswith(b"synced") for found in bytes_left)
    assert {len(found) for found in bytes_left} >= {len(b"synced"), len(whole)}
    assert b"synced" + bytes(9) in bytes_left, "the new size, and zeros"
    assert {clone.exists("/d/g") for clone in left} == {True, False}
    again = [vfs.crash_clone(seed).read_if_exists("/d/f") for seed in range(150)]
    assert again == bytes_left
    assert vfs.read_if_exists("/d/f") == whole


def test_it_may_leave_the_size_and_only_some_of_the_sectors() -> None:
    vfs = MemVfs()
    file = vfs.open("/f", OpenMode.CREATE)
    file.write_at(0, [b"s" * 700])
    file.sync()
    vfs.sync_dir("/")
    file.write_at(700, [b"m" * 2_000])
    left = [vfs.crash_clone(seed).read_if_exists("/f") or b"" for seed in range(50)]
    torn = [
        found for found in left if found[:2_700].rstrip(b"\0m") == b"s" * 700 and b"\0m" in found
    ]
    assert torn and all(len(found) == 2_700 for found in torn)
    assert all(found[:700] == b"s" * 700 for found in left), "what was synced is certain"
