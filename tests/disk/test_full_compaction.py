"""Compaction on small real disks that fill up during a pass, and get free space again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import RealVfs
from kraftjbod.testing import mounts
from tests.faults.cleaning.compaction_rig import (
    CONFIG,
    History,
    clean,
    compacting_manager,
    flush_and_roll,
    heal,
    keyed,
    read_all,
)
from tests.faults.rig import TOPIC_ID, TP, format_dir, open_dir

pytestmark = [pytest.mark.disk, pytest.mark.timeout(180)]

KEYS = 30
#: Free bytes at the start of a pass, whose target needs about 60 KiB.
FREE_BYTES = (0, 4096, 20_000, 40_000)


def config() -> TopicConfig:
    return CONFIG.model_copy(update={"segment_bytes": 100_000})


async def fill(manager: LogManager, history: History) -> None:
    handle = manager.get(TP) or await manager.create(TP, TOPIC_ID)
    for step in range(60):
        pairs = [(f"k{key}", f"{step} " * 300) for key in range(KEYS)]
        await history.append(handle, keyed(*pairs[step % 2 :: 2]))
    await flush_and_roll(handle)


def fill_up_to(path: Path, free_bytes: int) -> None:
    """Fill the disk up to ``free_bytes``, as far as its block size permits."""
    with path.open("wb") as filler:
        free = os.statvfs(path)
        size = free.f_bfree * free.f_frsize - free_bytes
        while True:
            try:
                os.posix_fallocate(filler.fileno(), 0, size)
            except OSError:
                size -= 4096  # The file system needs some blocks for the allocation metadata.
            else:
                return


def leftovers(root: str) -> list[str]:
    return [name for name in os.listdir(f"{root}/{TP}") if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_compaction_on_a_disk_that_fills_up_loses_no_record(kind: mounts.Kind) -> None:
    reason = mounts.why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    with mounts.mounted(kind, size_bytes=32 * 1024 * 1024) as disk:
        root, vfs, history = f"{disk.path}/d1", RealVfs(), History()
        format_dir(vfs, root, 1)
        log_dir = open_dir(vfs, root)
        log_dir.identify(log_dir.directory_id, vfs.device(root))
        manager = compacting_manager([log_dir], config(), limits=CleanerLimits())
        await manager.load()
        filler, full = Path(disk.path, "filler"), 0
        for free_bytes in FREE_BYTES:
            await fill(manager, history)
            handle = manager.get(TP)
            assert handle is not None
            fill_up_to(filler, free_bytes)
            with capture_logs() as logged:
                await clean(manager)
            full += any(e["event"] in ("log_dir_saturated", "no_space_to_compact") for e in logged)
            history.require_kept_by(await read_all(handle))
            assert log_dir.is_online
            filler.unlink()
            await heal(manager)
            manager.cleaner._no_space_until_ms.clear()
            await clean(manager)
            found = await read_all(handle)
            history.require_kept_by(found)
            assert len(found) == KEYS
            assert leftovers(root) == []
        await manager.close(1)
        assert full > 1
