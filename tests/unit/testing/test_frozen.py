"""The kit for disks that hang keeps its promises."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import frozen

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


def test_writes_wait_until_the_thaw() -> None:
    with mounts.mounted("ext4") as disk:
        (Path(disk.path) / "old").write_bytes(b"old")
        with frozen(disk, at_most_s=30):
            written = write_in_thread(Path(disk.path) / "new")
            assert not written.wait(0.5)
            assert (Path(disk.path) / "old").read_bytes() == b"old"
        assert written.wait(10)


def test_the_timer_thaws_by_itself() -> None:
    with mounts.mounted("ext4") as disk, frozen(disk, at_most_s=1):
        assert write_in_thread(Path(disk.path) / "new").wait(10)
