"""The ``known-log-dirs.json`` file: moved, added and forgotten directories of a node."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.identity.known_dirs import (
    KnownDirs,
    format_known_dirs,
    parse_known_dirs,
    read_known_dirs,
    write_known_dirs,
)
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import directory_id

TWO = KnownDirs(ids={"/a": directory_id(1), "/b": directory_id(2)})


def test_known_dirs_are_read_as_written() -> None:
    known = TWO.took_in("/c", directory_id(3))
    assert parse_known_dirs(format_known_dirs(known).decode(), "p") == known
    vfs = MemVfs()
    vfs.make_dirs("/meta")
    assert read_known_dirs(vfs, "/meta") == KnownDirs()
    write_known_dirs(vfs, "/meta", known)
    assert read_known_dirs(vfs, "/meta") == known


@pytest.mark.parametrize("damaged", ["", "{}", "[]", '{"directories": {"/a": "x"}}'])
def test_parse_known_dirs_rejects_a_damaged_file_and_names_its_path(damaged: str) -> None:
    with pytest.raises(StartupError, match="the/path"):
        parse_known_dirs(damaged, "the/path")


def test_read_known_dirs_rejects_a_file_that_is_not_utf_8() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/meta")
    write_known_dirs(vfs, "/meta", TWO)
    file = vfs.open("/meta/known-log-dirs.json", OpenMode.READ_WRITE)
    file.write_at(5, [b"\xff"])
    with pytest.raises(StartupError, match=r"known-log-dirs\.json is damaged"):
        read_known_dirs(vfs, "/meta")


def test_parse_known_dirs_accepts_a_file_without_added_directories() -> None:
    text = f'{{"version": 1, "directories": {{"/a": "{directory_id(1)}"}}}}'
    assert parse_known_dirs(text, "p") == KnownDirs(ids={"/a": directory_id(1)})


def test_known_dirs_seen_updates_paths_and_keeps_unseen_directories() -> None:
    moved = TWO.seen({"/c": directory_id(2)})
    assert moved.ids == {"/a": directory_id(1), "/c": directory_id(2)}
    assert moved.path_of(directory_id(2)) == "/c"
    swapped = TWO.seen({"/a": directory_id(2), "/b": directory_id(1)})
    assert swapped.ids == {"/a": directory_id(2), "/b": directory_id(1)}


def test_known_dirs_added_directory_is_kept_until_configured_or_removed() -> None:
    known = TWO.took_in("/c", directory_id(3))
    assert known.added == {"/c"}
    assert known.seen({"/a": directory_id(1)}).added == {"/c"}
    assert known.configured(["/a", "/b", "/c"]) == KnownDirs(ids=known.ids)
    assert known.without(directory_id(3)) == TWO
    assert known.without(directory_id(2)).ids.keys() == {"/a", "/c"}
    # The disk is mounted at another path, and that path was never added.
    assert known.seen({"/d": directory_id(3)}).added == frozenset()
