"""Damage on the disk below sound pages in the page cache is found by the scrub only."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing import mounts
from tests.faults.rig import batch, headers_of

pytestmark = [pytest.mark.disk, pytest.mark.timeout(120)]

BATCHES = 40
BODY_BYTES = 20_000


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_segment_scrub_reads_the_disk_instead_of_the_page_cache(kind: mounts.Kind) -> None:
    reason = mounts.why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    rng, vfs = random.Random(7), RealVfs()
    with mounts.mounted(kind) as disk:
        segment = LogSegment(
            vfs=vfs, directory=disk.path, base_offset=0, size_bytes=0, index_interval_bytes=4096
        )
        segment.create()
        bodies = [rng.randbytes(BODY_BYTES) for _ in range(BATCHES)]
        for offset, body in enumerate(bodies):
            data = batch(base_offset=offset, body=body)
            segment.append_batches([data], headers_of(data))
        file = segment.open()
        file.sync()
        sound = file.read_at(0, segment.size_bytes)
        assert scrubbed(vfs, segment) == []
        assert file.read_at(0, segment.size_bytes) == sound

        flip_on_disk(Path(disk.path).with_name("image"), bodies[17][8_000:8_064])
        assert file.read_at(0, segment.size_bytes) == sound
        assert scrubbed(vfs, segment) == [17]
        segment.close()


def scrubbed(vfs: RealVfs, segment: LogSegment) -> list[int]:
    file = vfs.open(segment.path, OpenMode.READ)
    scrub = SegmentScrub(vfs=vfs, file=file, segment=segment, end_offset=BATCHES)
    while not scrub.is_done:
        scrub.step()
    scrub.close()
    return [damage.offset for damage in scrub.damages]


def flip_on_disk(image: Path, pattern: bytes) -> None:
    """Change the only place below the file system that contains ``pattern``."""
    content = image.read_bytes()
    at = content.index(pattern)
    assert content.find(pattern, at + 1) < 0
    with image.open("r+b") as disk:
        os.pwrite(disk.fileno(), bytes([pattern[0] ^ 1]), at)
        os.fsync(disk.fileno())
