"""``copy_range`` between real files, with and without ``copy_file_range``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kraftjbod.storage.moves.file_copy import copy_range
from kraftjbod.storage.vfs import OpenMode, RealFile, RealVfs

PIECE = 4 * 1024 * 1024


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize(
    ("position", "size_bytes"),
    [(0, 0), (0, 1), (7, PIECE), (0, PIECE + 1), (123, 2 * PIECE + 5), (0, 3 * PIECE)],
)
def test_copy_range_copies_a_range_to_the_same_position(
    tmp_path: Path, by_kernel: bool, position: int, size_bytes: int
) -> None:
    data = random.Random(1).randbytes(position + size_bytes + 11)
    source, target = _files(tmp_path, data)
    before = b"\xff" * len(data)
    target.write_at(0, [before])
    assert copy_range(source, target, position, size_bytes, by_kernel=by_kernel) == size_bytes
    end = position + size_bytes
    expected = before[:position] + data[position:end] + before[end:]
    assert bytes(target.read_at(0, len(data))) == expected


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("there", [0, 10, PIECE, PIECE + 10])
def test_copy_range_of_a_shorter_source_copies_up_to_its_end(
    tmp_path: Path, by_kernel: bool, there: int
) -> None:
    data = random.Random(2).randbytes(there)
    source, target = _files(tmp_path, data)
    assert copy_range(source, target, 0, 2 * PIECE, by_kernel=by_kernel) == there
    assert target.size() == there
    assert bytes(target.read_at(0, there)) == data


def _files(tmp_path: Path, data: bytes) -> tuple[RealFile, RealFile]:
    (tmp_path / "source").write_bytes(data)
    vfs = RealVfs()
    return (
        vfs.open(str(tmp_path / "source"), OpenMode.READ),
        vfs.open(str(tmp_path / "target"), OpenMode.CREATE),
    )
