"""``frozen`` and ``Freeze``: disks that hang."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import Freeze, frozen
from kraftjbod.testing.mounts import DiskKitError

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(mounts.why_not("ext4") is not None, reason=str(mounts.why_not("ext4"))),
]


def write_in_thread(path: Path) -> threading.Event:
    done = threading.Event()

    def write() -> None:
        path.write_bytes(b"x")
        done.set()

    threading.Thread(target=write, daemon=True).start()
    return done


def test_frozen_disk_delays_writes_until_the_thaw() -> None:
    with mounts.mounted("ext4") as disk:
        (Path(disk.path) / "old").write_bytes(b"old")
        with frozen(disk, at_most_s=30):
            written = write_in_thread(Path(disk.path) / "new")
            assert not written.wait(0.5)
            assert (Path(disk.path) / "old").read_bytes() == b"old"
        assert written.wait(10)


def test_frozen_disk_is_thawed_by_the_timer() -> None:
    with mounts.mounted("ext4") as disk, frozen(disk, at_most_s=1):
        assert write_in_thread(Path(disk.path) / "new").wait(10)


def test_freeze_at_intervals_slows_writes() -> None:
    """Each write waits for a moment in which the file system is thawed."""
    with mounts.mounted("ext4") as disk:
        freeze = Freeze(disk, at_most_s=60, at_a_time_s=0.2)
        try:
            began_s = time.monotonic()
            for number in range(5):
                assert write_in_thread(Path(disk.path) / str(number)).wait(30)
            assert time.monotonic() - began_s > 0.2
        finally:
            freeze.thaw()
        assert write_in_thread(Path(disk.path) / "new").wait(10)


def test_freeze_of_unsupported_file_system_raises_disk_kit_error() -> None:
    with mounts.mounted("tmpfs") as disk, pytest.raises(DiskKitError, match="cannot freeze"):
        Freeze(disk, at_most_s=1)
