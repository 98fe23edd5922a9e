"""``MemFile``: pages in memory, and the content after a power cut."""

from __future__ import annotations

import random

import pytest

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case


@each_case("seed", range(20))
def test_mem_file_allows_content_after_crash_except_garbage_at_the_end(seed: int) -> None:
    rng = random.Random(seed)
    file = MemFile()
    for _ in range(rng.randint(1, 6)):
        file.write_at(rng.randint(0, file.size()), [rng.randbytes(rng.randint(1, 2_000))])
        if rng.random() < 0.3:
            file.truncate(rng.randint(0, file.size()))
        if rng.random() < 0.5:
            file.sync()
    certain, whole = file.synced, file.size()
    for _ in range(40):
        left = bytes(file.after_crash(rng).data)
        assert file.allows(left) or any(file.allows(left[:-n]) for n in range(1, 201))
    file.sync()
    assert file.allows(file.synced) and not file.allows(file.synced + b"x")
    assert not file.allows(file.synced[: whole // 2]) and not file.allows(b"y" + certain)


def test_rotten_bit_stays_flipped_after_power_cut() -> None:
    file = MemVfs().open("/file", OpenMode.CREATE)
    file.write_at(0, [b"1234"])
    file.sync()
    file.rot(1)
    assert file.read_at(0, 4) == b'1"34'
    assert file.after_crash(random.Random(1)).read_at(0, 4) == b'1"34'


def test_rotten_bit_under_cached_page_shows_after_eviction() -> None:
    file = MemVfs().open("/file", OpenMode.CREATE)
    file.write_at(0, [b"1234" * 1_000])
    file.sync()
    file.rot(1, is_cached=True)
    assert file.read_at(0, 4) == b"1234"
    assert file.on_disk()[:4] == b'1"34'
    file.evict(0, 1)
    with pytest.raises(BlockingIOError):
        file.read_cached_at(0, 1_000)
    assert len(file.read_cached_at(1_000, 2_000)) == 2_000
    assert file.read_at(0, 4) == b'1"34'
    file.evict(0, 4_000)
    file.read_at(0, 1)
    assert len(file.read_cached_at(0, 2_000)) == 2_000, "read ahead"
