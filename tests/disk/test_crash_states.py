"""States after a power cut of real file systems, compared with those of ``MemVfs``.

Short random sequences of file operations run on both. The state of the real file system after a
power cut has to be one that the model can leave. Otherwise the simulator never shows such a state
to the daemons.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kraftjbod.storage.vfs import OpenMode, RealVfs, Vfs
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, DiskKitError, Kind
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs

pytestmark = pytest.mark.disk

RUNS = 25
DIRECTORIES = ("d0", "d1")
NAMES = tuple(f"{directory}/f{n}" for directory in DIRECTORIES for n in range(3))
#: Number of simulated crashes among which the model must leave the same names.
MODEL_CRASHES = 3_000

#: One step of a sequence, on a tree below a path.
Step = Callable[[Vfs, str], None]
#: Content by path, or None for a directory.
State = dict[str, bytes | None]


def _create(name: str) -> Step:
    return lambda vfs, root: vfs.open(f"{root}/{name}", OpenMode.CREATE).close()


def _with_file(name: str, use: Callable[..., None]) -> Step:
    def step(vfs: Vfs, root: str) -> None:
        if vfs.exists(f"{root}/{name}"):
            file = vfs.open(f"{root}/{name}", OpenMode.READ_WRITE)
            use(file)
            file.close()

    return step


def _rename(name: str, other: str) -> Step:
    def step(vfs: Vfs, root: str) -> None:
        if vfs.exists(f"{root}/{name}"):
            vfs.rename(f"{root}/{name}", f"{root}/{other}")

    return step


def _draw_step(rng: random.Random, number: int) -> Step:
    name, content = rng.choice(NAMES), bytes([1 + number]) * rng.choice((10, 700, 9_000))
    match rng.choice(("create", "append", "append", "sync", "rename", "unlink", "cut", "names")):
        case "create":
            return _create(name)
        case "append":
            return _with_file(name, lambda file: file.write_at(file.size(), [content]))
        case "sync":
            return _with_file(name, lambda file: file.sync())
        case "rename":
            return _rename(name, rng.choice(NAMES))
        case "unlink":
            return lambda vfs, root: vfs.unlink_if_exists(f"{root}/{name}")
        case "cut":
            share = rng.random()
            return _with_file(name, lambda file: file.truncate(int(file.size() * share)))
        case _:
            directory = rng.choice(DIRECTORIES)
            return lambda vfs, root: vfs.sync_dir(f"{root}/{directory}")


def _play(steps: list[Step], vfs: Vfs, root: str) -> None:
    for step in steps:
        step(vfs, root)


def _begin(vfs: Vfs, root: str) -> None:
    """Create two directories with a durable file each."""
    for directory in DIRECTORIES:
        vfs.make_dirs(f"{root}/{directory}")
        file = vfs.open(f"{root}/{directory}/f0", OpenMode.CREATE)
        file.write_at(0, [b"\xff" * 1_000])
        file.sync()
        file.close()
        vfs.sync_dir(f"{root}/{directory}")
    vfs.sync_dir(root)


def _state(vfs: Vfs, root: str) -> State:
    found: State = {}
    for directory in DIRECTORIES:
        for entry in vfs.list_dir(f"{root}/{directory}"):
            path = f"{directory}/{entry.name}"
            found[path] = vfs.read_if_exists(f"{root}/{path}")
    return found


def why_forbidden(model: MemVfs, root: str, real: State) -> str:
    """Return why the model cannot leave the state ``real``, or an empty string if it can."""
    reason = "no crash of the model leaves these names"
    for seed in range(MODEL_CRASHES):
        left = model.names_after_crash(seed)
        names = {path.removeprefix(f"{root}/"): file for path, file in left.items()}
        files = {path: file for path, file in names.items() if isinstance(file, MemFile)}
        if files.keys() != real.keys():
            continue
        forbidden = [path for path, file in files.items() if not file.allows(real[path] or b"")]
        if not forbidden:
            return ""
        reason = f"the model does not leave these bytes of {', '.join(forbidden)}"
    return reason


@contextmanager
def _after_power_cut(disk: Disk, rng: random.Random) -> Iterator[str]:
    """Yield the mount point of the disk's state after a power cut, and leave the disk mounted."""
    if disk.kind in ("ext4", "xfs") and rng.random() < 0.5:
        disk.shut_down(keeps_names=rng.random() < 0.7)
        disk.unmount()
        disk.mount()
        yield disk.path
        return
    # The image contains the bytes that reached the device.
    home = os.path.dirname(disk.path)
    copy = Disk(path=f"{home}/copy/{disk.kind}", kind=disk.kind)
    os.makedirs(copy.path, exist_ok=True)
    shutil.copyfile(disk.image, copy.image)
    copy.mount(options="loop,nouuid" if disk.kind == "xfs" else "loop")
    try:
        yield copy.path
    finally:
        copy.unmount()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_disk_model_allows_the_content_of_a_real_disk_after_a_power_cut(kind: Kind) -> None:
    if (reason := mounts.why_not(kind)) is not None:
        pytest.skip(reason)
    try:
        with mounts.mounted(kind, size_bytes=32 << 20) as disk:
            findings = [_try(disk, seed) for seed in range(RUNS)]
    except DiskKitError as e:
        if "unknown filesystem type" in str(e):
            pytest.skip(f"the kernel has no {kind}")
        raise
    assert [found for found in findings if found] == []


def _sync_all(disk: Disk) -> None:
    """Sync the whole file system, as the kernel does every few seconds."""
    fd = os.open(disk.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert ctypes.CDLL(None).syncfs(fd) == 0
    finally:
        os.close(fd)


def _try(disk: Disk, seed: int) -> str:
    rng = random.Random(seed)
    steps = [_draw_step(rng, number) for number in range(rng.randint(4, 14))]
    model, real = MemVfs(), RealVfs()
    model.make_dirs("/r")
    real.make_dirs(f"{disk.path}/r{seed}")
    _begin(model, "/r")
    _begin(real, f"{disk.path}/r{seed}")
    real.sync_dir(disk.path)
    synced_at = rng.randint(0, 2 * len(steps))
    _play(steps[:synced_at], real, f"{disk.path}/r{seed}")
    if synced_at <= len(steps):
        _sync_all(disk)
    _play(steps[synced_at:], real, f"{disk.path}/r{seed}")
    _play(steps, model, "/r")
    with _after_power_cut(disk, rng) as path:
        left = _state(real, f"{path}/r{seed}")
    reason = why_forbidden(model, "/r", left)
    sizes = {path: len(content or b"") for path, content in left.items()}
    return f"seed {seed}: {reason}: {sizes}" if reason else ""
