"""``mounted``: each fault gives the errno that the tests of the product rely on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind, mounted

pytestmark = pytest.mark.disk


def _need(kind: Kind) -> None:
    reason = mounts.why_not(kind)
    if reason is not None:
        pytest.skip(reason)


def _errno_of(operation: Callable[[], object]) -> int | None:
    try:
        operation()
    except OSError as e:
        return e.errno
    return None


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs"])
def test_mounted_disk_is_a_file_system_and_is_removed(kind: Kind) -> None:
    _need(kind)
    with mounted(kind) as disk:
        assert disk.is_mounted
        assert os.stat(disk.path).st_dev != os.stat(Path(disk.path).parent).st_dev
        home = Path(disk.path).parent
    assert not disk.is_mounted
    assert not home.exists()


def test_mounted_disk_is_removed_after_exception_with_open_file() -> None:
    _need("ext4")
    with pytest.raises(ZeroDivisionError), mounted("ext4") as disk:
        held = os.open(f"{disk.path}/held", os.O_WRONLY | os.O_CREAT)
        raise ZeroDivisionError
    os.close(held)
    assert not disk.is_mounted
    assert not Path(disk.path).parent.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_shut_down_disk_fails_with_eio(kind: Kind) -> None:
    _need(kind)
    with mounted(kind) as disk:
        fd = os.open(f"{disk.path}/data", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * 4096)
        disk.shut_down()
        assert _errno_of(lambda: os.write(fd, b"y")) == errno.EIO
        assert _errno_of(lambda: os.fsync(fd)) == errno.EIO
        assert _errno_of(lambda: os.open(f"{disk.path}/new", os.O_CREAT)) == errno.EIO
        os.close(fd)


def test_aborted_ext4_is_read_only_for_open_files() -> None:
    _need("ext4")
    with mounted("ext4") as disk:
        fd = os.open(f"{disk.path}/data", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"kept")
        disk.abort()
        assert os.pread(fd, 4, 0) == b"kept"
        assert _errno_of(lambda: os.write(fd, b"y")) == errno.EROFS
        assert _errno_of(lambda: os.open(f"{disk.path}/new", os.O_CREAT)) == errno.EROFS
        os.close(fd)


def test_detached_disk_continues_for_open_files_only() -> None:
    _need("ext4")
    with mounted("ext4") as disk:
        fd = os.open(f"{disk.path}/data", os.O_RDWR | os.O_CREAT)
        disk.detach()
        assert os.write(fd, b"still here") == 10
        assert os.listdir(disk.path) == []
        assert os.fstat(fd).st_dev != os.stat(disk.path).st_dev
        os.close(fd)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_filled_disk_has_no_space(kind: Kind) -> None:
    _need(kind)
    with mounted(kind, size_bytes=16 * 1024 * 1024) as disk:
        with open(f"{disk.path}/data", "wb") as file:
            file.write(bytes(4096))
        disk.fill()
        with open(f"{disk.path}/data", "ab", buffering=0) as file:
            assert _errno_of(lambda: file.write(bytes(4096))) == errno.ENOSPC


def test_filled_disk_has_a_sparse_image() -> None:
    """The images of a soak would otherwise fill the disk of the machine."""
    _need("ext4")
    with mounted("ext4", size_bytes=64 * 1024 * 1024) as disk:
        disk.fill()
        os.sync()
        assert os.stat(disk.image).st_blocks * 512 < 16 * 1024 * 1024


def test_disk_that_another_mount_keeps_stays_shut_down() -> None:
    _need("ext4")
    with mounted("ext4") as disk, mounts.empty_mount_point() as elsewhere:
        assert not disk.is_shut_down
        subprocess.run(["mount", "--bind", disk.path, elsewhere], check=True)
        disk.shut_down()
        disk.unmount()
        disk.mount()
        assert disk.is_shut_down
        subprocess.run(["umount", elsewhere], check=True)
        disk.unmount()
        disk.repair()
        disk.mount()
        assert not disk.is_shut_down


def test_reap_removes_mounts_of_killed_process() -> None:
    """The reaper goes by name: the owner is dead, so that its mounts are unused."""
    _need("tmpfs")
    script = """
        import os, signal
        from kraftjbod.testing.mounts import mounted
        with mounted("tmpfs") as disk:
            print(disk.path, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30
    )
    left = Disk(path=done.stdout.strip(), kind="tmpfs")
    assert left.path.startswith(f"{tempfile.gettempdir()}/{mounts.PREFIX}")
    # Another test run may reap it first.
    mounts.reap()
    assert not left.is_mounted
    assert not Path(left.path).parent.exists()


def test_concurrent_reap_calls_raise_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    owner = ended.stdout.strip()
    homes = [Path(tempfile.mkdtemp(prefix=f"{mounts.PREFIX}{owner}-")) for _ in range(10)]
    for home in homes:
        for number in range(200):
            (home / str(number)).touch()
    script = "from kraftjbod.testing.mounts import reap; reap()"
    runs = [
        subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [run.communicate(timeout=60)[1] for run in runs] == ["", "", "", ""]
    assert [home for home in homes if home.exists()] == []


def test_reap_leaves_mounts_of_live_process() -> None:
    _need("tmpfs")
    with mounted("tmpfs") as disk:
        mounts.reap()
        assert disk.is_mounted


def test_closed_to_owner_restores_permission_bits(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with mounts.closed_to_owner(str(tmp_path)):
        assert tmp_path.stat().st_mode & 0o777 == 0
    assert tmp_path.stat().st_mode & 0o777 == 0o750
