"""``MemVfs``: content after a power cut. unit/storage/test_vfs.py tests its other rules."""

from __future__ import annotations

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


def test_crash_clone_keeps_synced_bytes_and_a_prefix_of_the_rest() -> None:
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


def test_crash_clone_may_keep_file_size_with_some_sectors_only() -> None:
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


def _outcomes(vfs: MemVfs, directory: str) -> set[tuple[str, ...]]:
    clones = (vfs.crash_clone(seed) for seed in range(200))
    return {tuple(entry.name for entry in clone.list_dir(directory)) for clone in clones}


def test_name_of_synced_file_may_survive_crash_without_earlier_changes() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    for name in "ab":
        vfs.open(f"/d/{name}", OpenMode.CREATE)
    vfs.sync_dir("/d")
    vfs.rename("/d/a", "/d/c")
    vfs.rename("/d/b", "/d/d")
    assert _outcomes(vfs, "/d") == {("a", "b"), ("b", "c"), ("c", "d")}
    vfs.open("/d/d", OpenMode.READ).sync()
    left = _outcomes(vfs, "/d")
    assert left >= {("a", "b"), ("b", "c"), ("a", "d"), ("c", "d")}
    assert ("a", "b", "d") in left, "both names of one file"
    assert all({"a", "c"} & set(names) and {"b", "d"} & set(names) for names in left)


def test_changes_of_one_name_survive_a_crash_in_their_order() -> None:
    vfs = MemVfs()
    vfs.open("/new", OpenMode.CREATE)
    vfs.rename("/new", "/name")
    vfs.rename("/name", "/newest")
    assert ("newest",) in _outcomes(vfs, "/")
    vfs.sync_dir("/")
    vfs.unlink_if_exists("/newest")
    vfs.open("/newest", OpenMode.CREATE).write_at(0, [b"2"])
    assert _outcomes(vfs, "/") == {("newest",), ()}


def test_sync_dir_makes_names_in_its_directory_and_renames_into_it_durable() -> None:
    vfs = MemVfs()
    for directory in ("/x/d", "/x/e"):
        vfs.make_dirs(directory)
        vfs.open(f"{directory}/f", OpenMode.CREATE)
    vfs.sync_dir("/x/d")
    clones = [vfs.crash_clone(seed) for seed in range(50)]
    assert all(clone.exists("/x/d/f") for clone in clones)
    assert {clone.exists("/x/e") for clone in clones} == {True, False}
    vfs.rename("/x/d/f", "/x/e/g")
    vfs.sync_dir("/x/e")
    clones = [vfs.crash_clone(seed) for seed in range(50)]
    assert {(clone.exists("/x/d/f"), clone.exists("/x/e/g")) for clone in clones} == {(False, True)}


def test_removed_tree_survives_a_crash_in_part() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    for name in "ab":
        vfs.open(f"/d/{name}", OpenMode.CREATE)
    vfs.sync_dir("/d")
    vfs.remove_tree("/d")
    clones = [vfs.crash_clone(seed) for seed in range(100)]
    left = {tuple(e.name for e in one.list_dir("/d")) for one in clones if one.is_dir("/d")}
    assert left == {("a", "b"), ("b",), ()}


def test_unsynced_new_file_may_have_no_bytes() -> None:
    vfs = MemVfs()
    vfs.open("/f", OpenMode.CREATE).write_at(0, [b"1" * 100_000])
    vfs.sync_dir("/")
    sizes = [vfs.crash_clone(seed).open("/f", OpenMode.READ).size() for seed in range(50)]
    assert sizes.count(0) > 1
