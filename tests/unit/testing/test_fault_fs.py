"""``FaultFs``: each fault begins at once, and ends when it is healed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftjbod.local.privileges import PACKAGE_ROOT
from kraftjbod.testing import fault_fs, mounts
from kraftjbod.testing.fault_fs import FaultFs
from kraftjbod.testing.mounts import DiskKitError

REASON = fault_fs.why_not()
pytestmark = [pytest.mark.disk, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

BLOCK = 4096
DEADLINE_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultFs]:
    """A fault file system over its own backing directory, which contains a file."""
    live = tmp_path / "live"
    live.mkdir()
    (live / "old").write_bytes(b"x" * BLOCK)
    home = tmp_path / "home"
    home.mkdir()
    with FaultFs.mount(live, backing=live, home=home) as disk:
        yield disk


def errno_of(operation: Callable[[], object]) -> int | None:
    try:
        operation()
    except OSError as e:
        return e.errno
    return None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_mounted(path: Path) -> bool:
    return any(mount.path == str(path) for mount in mounts.mount_table())


def test_mount_over_live_directory_shows_the_same_files(disk: FaultFs) -> None:
    path = disk.path
    assert (path / "old").read_bytes() == b"x" * BLOCK
    (path / "new").write_bytes(b"written through the mount")
    assert path.stat().st_dev != path.parent.stat().st_dev
    disk.unmount()
    assert path.stat().st_dev == path.parent.stat().st_dev
    assert (path / "new").read_bytes() == b"written through the mount"


def test_eio_fault_fails_all_operations_including_open_files(disk: FaultFs) -> None:
    with open(disk.path / "old", "r+b", buffering=0) as file:
        assert file.read(4) == b"xxxx"
        disk.fail("eio")
        for operation in (
            lambda: os.pread(file.fileno(), 4, 0),
            lambda: file.write(b"y"),
            lambda: os.fsync(file.fileno()),
            lambda: os.fstat(file.fileno()),
            lambda: (disk.path / "old").read_bytes(),
            lambda: (disk.path / "new").touch(),
            lambda: os.listdir(disk.path),
            lambda: os.statvfs(disk.path),
        ):
            assert errno_of(operation) == errno.EIO
        disk.heal()
        assert os.pread(file.fileno(), 4, 0) == b"xxxx"
    assert os.listdir(disk.path) == ["old"]


def test_readonly_fault_allows_reads_only(disk: FaultFs) -> None:
    with open(disk.path / "old", "r+b", buffering=0) as file:
        disk.fail("readonly")
        for operation in (
            lambda: file.write(b"y"),
            lambda: file.truncate(0),
            lambda: os.fsync(file.fileno()),
            lambda: (disk.path / "new").touch(),
            lambda: os.open(disk.path / "old", os.O_RDWR),
            lambda: (disk.path / "new").mkdir(),
            lambda: (disk.path / "old").unlink(),
            lambda: (disk.path / "old").rename(disk.path / "new"),
            lambda: (disk.path / "old").chmod(0o600),
        ):
            assert errno_of(operation) == errno.EROFS
        assert os.pread(file.fileno(), BLOCK, 0) == b"x" * BLOCK
        assert (disk.path / "old").read_bytes() == b"x" * BLOCK
        disk.heal()
        assert file.write(b"y") == 1


def test_full_fault_leaves_no_space_until_space_is_granted(disk: FaultFs) -> None:
    (disk.path / "big").write_bytes(bytes(64 * BLOCK))
    assert os.statvfs(disk.path).f_bavail > 0
    with open(disk.path / "old", "r+b", buffering=0) as file:
        disk.fail("full")
        assert os.statvfs(disk.path).f_bavail == 0
        assert file.write(b"in place") == 8
        assert errno_of(lambda: os.pwrite(file.fileno(), b"y", 10 * BLOCK)) == errno.ENOSPC
        assert errno_of(lambda: os.posix_fallocate(file.fileno(), 0, 9 * BLOCK)) == errno.ENOSPC
        assert errno_of(lambda: (disk.path / "new").touch()) == errno.ENOSPC
        assert errno_of(lambda: (disk.path / "new").mkdir()) == errno.ENOSPC
        assert (disk.path / "old").read_bytes()[:8] == b"in place"
        (disk.path / "old").rename(disk.path / "renamed")
        os.truncate(disk.path / "big", 32 * BLOCK)
        statistics = os.statvfs(disk.path)
        assert statistics.f_bavail * statistics.f_frsize == 32 * BLOCK
        assert os.pwrite(file.fileno(), b"y", BLOCK) == 1
        (disk.path / "big").unlink()
        (disk.path / "new").write_bytes(bytes(60 * BLOCK))
        assert errno_of(lambda: (disk.path / "more").write_bytes(bytes(9 * BLOCK))) == errno.ENOSPC
        disk.fail("full")
        assert os.statvfs(disk.path).f_bavail == 0, "each fault begins with a full disk"
        disk.heal()
        assert os.statvfs(disk.path).f_bavail > 0
        assert os.pwrite(file.fileno(), b"y", 10 * BLOCK) == 1


def test_hang_fault_blocks_writes_until_healed(disk: FaultFs) -> None:
    done: list[str] = []

    def write() -> None:
        (disk.path / "new").write_bytes(b"late")
        done.append("written")

    with open(disk.path / "old", "rb"):
        disk.fail("hang")
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        # Closing, as at the end of this block or in each started process, never hangs.
        subprocess.run(["true"], check=True, timeout=DEADLINE_S)
    writer.join(0.5)
    assert done == []
    disk.heal()
    writer.join(DEADLINE_S)
    assert done == ["written"]
    assert (disk.path / "new").read_bytes() == b"late"


def test_hanging_disk_can_be_unmounted_with_an_open_file(disk: FaultFs) -> None:
    file = os.open(disk.path / "old", os.O_RDWR)
    try:
        disk.fail("hang")
        reader = threading.Thread(
            target=lambda: errno_of(lambda: os.pread(file, 1, 0)), daemon=True
        )
        reader.start()
        disk.unmount()
        reader.join(DEADLINE_S)
        assert not reader.is_alive()
        assert not is_mounted(disk.path)
        assert errno_of(lambda: os.pwrite(file, b"y", 0)) == errno.ENOTCONN
        assert (disk.path / "old").read_bytes() == b"x" * BLOCK
    finally:
        os.close(file)
    with pytest.raises(DiskKitError, match="ended"):
        disk.fail("eio")
    disk.unmount()


def test_slow_fault_delays_writes_only(disk: FaultFs) -> None:
    disk.fail("slow", delay_s=3_600)
    assert (disk.path / "old").read_bytes() == b"x" * BLOCK
    writer = threading.Thread(target=lambda: (disk.path / "new").touch(), daemon=True)
    writer.start()
    writer.join(0.5)
    assert writer.is_alive()
    disk.fail("slow", delay_s=0.01)
    writer.join(DEADLINE_S)
    began_s = time.monotonic()
    disk.fail("slow", delay_s=0.3)
    (disk.path / "new").unlink()
    assert time.monotonic() - began_s >= 0.3


def test_mount_ends_with_the_process_that_made_it(tmp_path: Path) -> None:
    """The killed process can undo nothing; its server unmounts, even while the disk hangs."""
    script = """
        import os, pathlib, signal, sys
        from kraftjbod.testing.fault_fs import FaultFs
        root = pathlib.Path(sys.argv[1])
        live = root / "live"
        live.mkdir()
        FaultFs.mount(live, backing=live, home=root).fail("hang")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not is_mounted(tmp_path / "live"))
    assert os.listdir(tmp_path / "live") == []


def test_reap_removes_left_over_mount_that_it_finds_by_name(tmp_path: Path) -> None:
    """Owner and server are both killed, so that only the reaper is left."""
    script = """
        import os, pathlib, signal, sys
        from kraftjbod.testing.fault_fs import FaultFs
        root = pathlib.Path(sys.argv[1])
        live = root / "a live one"
        live.mkdir()
        disk = FaultFs.mount(live, backing=live, home=root)
        disk._server.kill()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGKILL
    # Another test run may reap it first.
    mounts.reap()
    wait_until(lambda: not is_mounted(tmp_path / "a live one"))


def test_mount_on_missing_directory_raises_error_with_reason(tmp_path: Path) -> None:
    with pytest.raises(DiskKitError, match="No such file"):
        FaultFs.mount(tmp_path / "nothing", backing=tmp_path, home=tmp_path)


PLAIN_USER = """
import errno, pathlib, sys
from kraftjbod.testing import fault_fs
from kraftjbod.testing.fault_fs import FaultFs
assert fault_fs.why_not() is None, fault_fs.why_not()
root = pathlib.Path(sys.argv[1])
live = root / "live"
live.mkdir()
(live / "old").write_text("old")
with FaultFs.mount(live, backing=live, home=root) as disk:
    (live / "new").write_text("new")
    assert (live / "old").read_text() == "old"
    disk.fail("eio")
    try:
        (live / "old").read_text()
    except OSError as e:
        assert e.errno == errno.EIO
    else:
        raise AssertionError("no fault")
    disk.fail("hang")
print(sorted(path.name for path in live.iterdir()), live.stat().st_dev == root.stat().st_dev)
"""


# Runs a command as user 65534 in a mount namespace with a world-accessible /dev/fuse, as in Debian.
AS_UNPRIVILEGED = """
mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse || exit
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups env PYTHONDONTWRITEBYTECODE=1 "$@"
"""


def test_unprivileged_user_mounts_through_the_helper(tmp_path: Path) -> None:
    """With the setuid helper of Debian's package fuse3; root runs it as another user."""
    helper = shutil.which("fusermount3")
    if helper is None or not os.stat(helper).st_mode & stat.S_ISUID:
        pytest.skip("fusermount3 (package fuse3) is not installed setuid root here")
    as_user: list[str] = []
    if os.geteuid() == 0:
        as_user = ["unshare", "--mount", "sh", "-c", AS_UNPRIVILEGED, "sh", str(tmp_path)]
    # The fault file system needs only the standard library.
    probe = "import kraftjbod.testing.fault_fs"
    for python in (sys.executable, "/usr/bin/python3"):
        tried = subprocess.run([*as_user, python, "-c", probe], cwd=PACKAGE_ROOT, timeout=60)
        (tmp_path / "fuse").unlink(missing_ok=True)
        if tried.returncode == 0:
            break
    else:
        pytest.skip("user 65534 cannot read this code, or has no Python 3.11")
    with tempfile.TemporaryDirectory() as name:
        if as_user:
            os.chown(name, 65534, 65534)
        done = subprocess.run(
            [*as_user, python, "-c", PLAIN_USER, name],
            cwd=PACKAGE_ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert (done.stdout, done.stderr) == ("['new', 'old'] True\n", "")
        assert os.stat(f"{name}/live/new").st_uid == os.stat(name).st_uid
