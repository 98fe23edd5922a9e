"""``ReserveFile`` is complete or absent."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

import pytest

from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.log.log_loader import list_log_dir
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.vfs import OpenMode, RealVfs, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import random_bytes_of

SIZE = 2 * 1024 * 1024 + 5000


def nothing() -> None:
    return


def reserve_on(vfs: Vfs, directory: str = "/d1", size_bytes: int = SIZE) -> ReserveFile:
    return ReserveFile(
        vfs=vfs, directory=directory, size_bytes=size_bytes, random_bytes=random_bytes_of()
    )


def fresh() -> MemVfs:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    return vfs


def test_reserve_file_on_a_real_file_system_allocates_blocks(tmp_path: Path) -> None:
    vfs, beats = RealVfs(), []
    reserve = reserve_on(vfs, str(tmp_path))
    assert not reserve.find()
    reserve.build(lambda: beats.append(1))
    assert len(beats) == 3
    extent = vfs.extent_if_exists(f"{tmp_path}/{RESERVE_FILE}")
    assert extent is not None
    assert extent.size_bytes == SIZE
    assert extent.allocated_bytes >= SIZE
    data = (tmp_path / RESERVE_FILE).read_bytes()
    assert data[: 1 << 20] != data[1 << 20 : 2 << 20], "each part is drawn afresh"
    assert reserve_on(vfs, str(tmp_path)).find()
    assert reserve.release()
    assert not (tmp_path / RESERVE_FILE).exists()
    assert not reserve.release()


def test_reserve_file_ignores_a_sparse_file(tmp_path: Path) -> None:
    vfs = RealVfs()
    file = vfs.open(f"{tmp_path}/{RESERVE_FILE}", OpenMode.CREATE)
    file.truncate(SIZE)
    file.close()
    reserve = reserve_on(vfs, str(tmp_path))
    assert not reserve.find()
    reserve.build(nothing)
    assert reserve.find()


def test_reserve_file_keeps_a_complete_file() -> None:
    vfs = fresh()
    reserve_on(vfs).build(nothing)
    before = vfs.read_if_exists(f"/d1/{RESERVE_FILE}")
    again = reserve_on(vfs)
    again.build(nothing)
    assert again.is_held
    assert vfs.read_if_exists(f"/d1/{RESERVE_FILE}") == before


@pytest.mark.parametrize("size_bytes", [SIZE - 1, SIZE + 1, 0])
def test_reserve_file_of_another_size_is_recreated_or_removed(size_bytes: int) -> None:
    vfs = fresh()
    reserve_on(vfs).build(nothing)
    other = reserve_on(vfs, size_bytes=size_bytes)
    assert not other.find()
    other.build(nothing)
    assert other.is_held
    extent = vfs.extent_if_exists(f"/d1/{RESERVE_FILE}")
    assert (0 if extent is None else extent.size_bytes) == size_bytes
    assert (extent is None) == (size_bytes == 0)


def test_reserve_file_survives_a_crash() -> None:
    vfs = fresh()
    reserve_on(vfs).build(nothing)
    for seed in range(20):
        assert reserve_on(vfs.crash_clone(seed)).find()


def test_reserve_file_that_does_not_fit_is_not_started() -> None:
    vfs = fresh()
    vfs.capacity_bytes = SIZE - 1
    reserve = reserve_on(vfs)
    with pytest.raises(OSError, match=f"reserve of {SIZE} bytes does not fit into {SIZE - 1} free"):
        reserve.build(nothing)
    assert vfs.used_bytes() == 0
    assert not reserve.is_held


def test_reserve_file_build_that_runs_out_of_space_leaves_no_file() -> None:
    vfs = fresh()
    vfs.capacity_bytes = SIZE
    reserve = reserve_on(vfs)

    def shrink() -> None:
        vfs.capacity_bytes = SIZE // 2

    with pytest.raises(OSError, match="No space") as caught:
        reserve.build(shrink)
    assert caught.value.errno == ENOSPC
    assert not reserve.is_held
    assert not reserve.release(), "there was no whole one"
    assert vfs.used_bytes() == 0


def test_reserve_file_counts_the_space_of_its_predecessor_as_free() -> None:
    vfs = fresh()
    vfs.capacity_bytes = SIZE
    reserve_on(vfs, size_bytes=SIZE - 1).build(nothing)
    reserve = reserve_on(vfs)
    reserve.build(nothing)
    assert reserve.is_held


def test_reserve_file_is_a_known_name_in_a_log_directory() -> None:
    vfs = fresh()
    reserve_on(vfs).build(nothing)
    assert list_log_dir(vfs, "/d1").unknown == []
