"""Opening the directories at start: new, moved, missing, hung, locked and contradictory disks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import LOST_DIR
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.identity.dir_opener import DirOpener
from kraftjbod.storage.identity.known_dirs import KnownDirs, read_known_dirs, write_known_dirs
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import OpenMode, Vfs, write_atomically
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    CLUSTER_ID,
    NODE_ID,
    ManualClock,
    directory_id,
    format_dir,
    random_bytes_of,
    require_no_report,
)
from tests.faults.vfs_fault import Fault, FaultVfs

RESERVE = 10_000


def log_dir(path: str, vfs: Vfs, channel: LogDirFailureChannel | None = None) -> LogDir:
    return LogDir(
        path=path,
        vfs=vfs,
        clock=ManualClock(),
        failure_channel=channel or LogDirFailureChannel(max_dirs=9),
        reserve=ReserveFile(
            vfs=vfs, directory=path, size_bytes=RESERVE, random_bytes=random_bytes_of()
        ),
    )


async def open_all(
    vfss: Mapping[str, Vfs],
    *,
    close: bool = True,
    timeout_ms: int = 5000,
    added: Mapping[str, Vfs] | None = None,
    channel: LogDirFailureChannel | None = None,
) -> tuple[dict[str, LogDir], str]:
    """Open the configured ``vfss`` and the disks in ``added``, which are not configured."""
    dirs = [log_dir(path, vfs, channel) for path, vfs in vfss.items()]
    elsewhere = added or {}
    opener = DirOpener(
        log_dirs=dirs,
        metadata_dir=dirs[0].path,
        node_id=NODE_ID,
        random_bytes=random_bytes_of(),
        timeout_ms=timeout_ms,
        make_log_dir=lambda path: log_dir(path, elsewhere[path]),
    )
    cluster_id = await opener.open()
    dirs += opener.added
    if close:
        for opened in dirs:
            opened.close()
    return {opened.path: opened for opened in dirs}, cluster_id


def disks(*formatted: int) -> dict[str, MemVfs]:
    """Create two disks at /d1 and /d2; the numbers in ``formatted`` are formatted."""
    found = {f"/d{i}": MemVfs() for i in (1, 2)}
    for i, (path, vfs) in enumerate(found.items(), 1):
        vfs.make_dirs(path)
        if i in formatted:
            format_dir(vfs, path, i)
    return found


async def wait_unlocked(vfs: MemVfs) -> None:
    while vfs.has_locks:
        await asyncio.sleep(0.002)


async def test_dir_opener_opens_formatted_directories_and_remembers_them() -> None:
    vfss = disks(1, 2)
    dirs, cluster_id = await open_all(vfss)
    assert cluster_id == CLUSTER_ID
    assert [d.directory_id for d in dirs.values()] == [directory_id(1), directory_id(2)]
    known = read_known_dirs(vfss["/d1"], "/d1")
    assert known.ids == {"/d1": directory_id(1), "/d2": directory_id(2)}


async def test_dir_opener_gives_a_new_disk_an_id() -> None:
    vfss = disks(1)
    dirs, _ = await open_all(vfss)
    written = read_meta_properties(vfss["/d2"], "/d2/meta.properties")
    assert written is not None
    assert dirs["/d2"].is_online
    assert written.directory_id == dirs["/d2"].directory_id
    assert (written.cluster_id, written.node_id) == (CLUSTER_ID, NODE_ID)


async def test_dir_opener_missing_disk_is_offline_under_its_id_and_not_written() -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    await wait_unlocked(vfss["/d1"])
    vfss["/d2"] = MemVfs()
    vfss["/d2"].make_dirs("/d2")
    with capture_logs() as logs:
        dirs, _ = await open_all(vfss)
    assert [entry["event"] for entry in logs] == ["log_dir_offline"]
    assert "not mounted or was wiped" in dirs["/d2"].offline_reason
    assert dirs["/d2"].directory_id == directory_id(2)
    assert vfss["/d2"].list_dir("/d2") == []
    assert f"directory {directory_id(2)} is missing from /d2: " in dirs["/d2"].offline_reason
    assert read_known_dirs(vfss["/d1"], "/d1").ids["/d2"] == directory_id(2)


async def test_dir_opener_absent_directory_without_known_id_is_offline() -> None:
    vfss = disks(1)
    vfss["/d2"].remove_tree("/d2")
    dirs, _ = await open_all(vfss)
    assert not dirs["/d2"].is_online
    assert dirs["/d2"].directory_id == LOST_DIR


async def test_dir_opener_without_any_directory_fails_with_a_plain_message() -> None:
    """The first start of a newcomer prints one line that says what to do, and no stack trace."""
    with capture_logs() as events, pytest.raises(StartupError, match="/d1 does not exist"):
        await open_all({"/d1": MemVfs(), "/d2": MemVfs()})
    assert "log_dir_operation_made_no_sense" not in {event["event"] for event in events}


async def test_dir_opener_finds_a_disk_at_a_new_path_by_its_id() -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    await wait_unlocked(vfss["/d1"])
    moved = MemVfs()
    format_dir(moved, "/new", 2)
    dirs, _ = await open_all({"/d1": vfss["/d1"], "/new": moved})
    assert dirs["/new"].directory_id == directory_id(2)
    known = read_known_dirs(vfss["/d1"], "/d1")
    assert known.ids == {"/d1": directory_id(1), "/new": directory_id(2)}


async def test_dir_opener_hung_disk_does_not_block_the_start() -> None:
    vfss = disks(1, 2)
    stuck = FaultVfs(vfss["/d2"])
    stuck.inject(Fault(effect=DiskFault.HANG_EIO))
    dirs, _ = await open_all({"/d1": vfss["/d1"], "/d2": stuck}, timeout_ms=30)
    assert not dirs["/d2"].is_online
    assert "did not answer" in dirs["/d2"].offline_reason
    stuck.clear()


async def test_dir_opener_unreadable_disk_is_offline_without_a_failure_report() -> None:
    vfss = disks(1, 2)
    bad = FaultVfs(vfss["/d2"])
    bad.inject(Fault(kinds=frozenset({"read_if_exists"})))
    channel = LogDirFailureChannel(max_dirs=9)
    dirs, _ = await open_all({"/d1": vfss["/d1"], "/d2": bad}, channel=channel)
    assert not dirs["/d2"].is_online
    await require_no_report(channel)


async def test_dir_opener_refuses_a_locked_directory() -> None:
    vfss = disks(1, 2)
    await open_all(vfss, close=False)
    with pytest.raises(StartupError, match=r"Failed to acquire lock on file \.lock in /d[12]"):
        await open_all(vfss)


async def test_dir_opener_duplicate_id_names_both_paths() -> None:
    vfss = disks(1)
    format_dir(vfss["/d2"], "/d2", 1)
    with pytest.raises(StartupError, match="It was the ID of /d1, but also of /d2"):
        await open_all(vfss)


async def test_dir_opener_unreadable_metadata_directory_ends_the_start() -> None:
    vfss = disks(1, 2)
    bad = FaultVfs(vfss["/d1"])
    bad.inject(Fault(kinds=frozenset({"device"})))
    with pytest.raises(StartupError, match="Encountered I/O error in metadata log directory /d1"):
        await open_all({"/d1": bad, "/d2": vfss["/d2"]})


async def test_dir_opener_refuses_a_metadata_log_in_a_data_directory() -> None:
    vfss = disks(1, 2)
    vfss["/d2"].make_dirs("/d2/__cluster_metadata-0")
    with pytest.raises(StartupError, match="unexpected metadata location in data directory /d2"):
        await open_all(vfss)


async def test_dir_opener_without_formatted_directory_names_the_format_tool() -> None:
    with pytest.raises(StartupError, match="kraftjbod-storage format"):
        await open_all(disks())


async def test_dir_opener_refuses_a_damaged_known_dirs_file() -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    await wait_unlocked(vfss["/d1"])
    vfss["/d1"].open("/d1/known-log-dirs.json", OpenMode.READ_WRITE).truncate(3)
    with pytest.raises(StartupError, match=r"known-log-dirs\.json is damaged"):
        await open_all(vfss)


def claim(vfs: MemVfs, path: str, text: str) -> None:
    write_atomically(vfs, f"{path}/meta.properties", text.encode())


OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"version=1\ncluster.id={OTHER_CLUSTER}\nnode.id={NODE_ID}\n",
            f"belongs to cluster {OTHER_CLUSTER}, and this node to {CLUSTER_ID}",
        ),
        (
            f"version=1\ncluster.id={CLUSTER_ID}\nnode.id=7\n",
            f"belongs to node 7, and this is node {NODE_ID}",
        ),
        ("version=1\nnode.id=1\n", "cluster.id was not found"),
    ],
)
async def test_dir_opener_foreign_or_invalid_data_disk_is_offline_and_the_start_continues(
    text: str, message: str
) -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    await wait_unlocked(vfss["/d1"])
    vfss["/d2"] = MemVfs()
    vfss["/d2"].make_dirs("/d2")
    claim(vfss["/d2"], "/d2", text)
    dirs, _ = await open_all(vfss)
    assert dirs["/d1"].is_online
    assert not dirs["/d2"].is_online
    assert message in dirs["/d2"].offline_reason
    assert dirs["/d2"].directory_id == directory_id(2)
    assert vfss["/d2"].read_if_exists("/d2/meta.properties") == text.encode()


async def test_dir_opener_metadata_directory_of_another_node_ends_the_start() -> None:
    vfss = disks(1, 2)
    claim(vfss["/d1"], "/d1", f"version=1\ncluster.id={CLUSTER_ID}\nnode.id=7\n")
    with pytest.raises(StartupError, match="Stored node id 7"):
        await open_all(vfss)


async def test_dir_opener_other_disk_at_a_known_path_is_offline_and_named() -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    await wait_unlocked(vfss["/d1"])
    vfss["/d2"] = MemVfs()
    format_dir(vfss["/d2"], "/d2", 3)
    dirs, _ = await open_all(vfss)
    reason = dirs["/d2"].offline_reason
    assert f"directory {directory_id(2)} is missing from /d2" in reason
    assert f"the disk there is directory {directory_id(3)}" in reason
    assert dirs["/d2"].directory_id == directory_id(2)
    assert read_known_dirs(vfss["/d1"], "/d1").ids["/d2"] == directory_id(2)


async def test_dir_opener_finds_swapped_disks_by_id() -> None:
    vfss = {**disks(1, 2), "/d3": MemVfs()}
    format_dir(vfss["/d3"], "/d3", 3)
    await open_all(vfss)
    for vfs in vfss.values():
        await wait_unlocked(vfs)
    second, third = MemVfs(), MemVfs()
    format_dir(second, "/d2", 3)
    format_dir(third, "/d3", 2)
    dirs, _ = await open_all({"/d1": vfss["/d1"], "/d2": second, "/d3": third})
    assert {path: d.directory_id for path, d in dirs.items() if d.is_online} == {
        "/d1": directory_id(1),
        "/d2": directory_id(3),
        "/d3": directory_id(2),
    }
    known = read_known_dirs(vfss["/d1"], "/d1").ids
    assert (known["/d2"], known["/d3"]) == (directory_id(3), directory_id(2))


async def test_dir_opener_opens_an_added_directory_that_is_not_configured() -> None:
    vfss = disks(1, 2)
    new = MemVfs()
    format_dir(new, "/new", 3)
    known = KnownDirs(ids={"/d1": directory_id(1), "/d2": directory_id(2)})
    write_known_dirs(vfss["/d1"], "/d1", known.took_in("/new", directory_id(3)))
    with capture_logs() as logs:
        dirs, _ = await open_all(vfss, added={"/new": new})
    assert dirs["/new"].is_online
    assert dirs["/new"].directory_id == directory_id(3)
    (logged,) = [entry for entry in logs if entry["event"] == "added_log_dir_not_configured"]
    assert logged["log_dir"] == "/new"
    await wait_unlocked(vfss["/d1"])
    await wait_unlocked(new)
    # Once it is configured, the directory is no longer remembered as added.
    await open_all({**vfss, "/new": new})
    assert read_known_dirs(vfss["/d1"], "/d1").added == frozenset()


async def test_dir_opener_added_directory_without_disk_is_offline() -> None:
    vfss = disks(1, 2)
    known = KnownDirs(ids={"/d1": directory_id(1), "/d2": directory_id(2)})
    write_known_dirs(vfss["/d1"], "/d1", known.took_in("/new", directory_id(3)))
    dirs, _ = await open_all(vfss, added={"/new": MemVfs()})
    assert not dirs["/new"].is_online
    assert dirs["/new"].directory_id == directory_id(3)
    assert read_known_dirs(vfss["/d1"], "/d1").added == {"/new"}


async def test_dir_opener_allocates_the_reserve_of_each_directory() -> None:
    vfss = disks(1, 2)
    dirs, _ = await open_all(vfss)
    for path, vfs in vfss.items():
        assert vfs.extent_if_exists(f"{path}/{RESERVE_FILE}") is not None
        assert dirs[path].reserve_bytes == RESERVE


@pytest.mark.parametrize("number", [1, 2], ids=["metadata", "data"])
async def test_dir_opener_formatted_directory_without_space_is_saturated(number: int) -> None:
    """Such a directory blocked the first start of the whole broker."""
    vfss = disks(1, 2)
    path = f"/d{number}"
    full = vfss[path]
    full.capacity_bytes = full.used_bytes() + RESERVE - 1
    with capture_logs() as logged:
        dirs, _ = await open_all(vfss)
    states = {path: log_dir.state for path, log_dir in dirs.items()}
    assert states == {"/d1": LogDirState.ONLINE, "/d2": LogDirState.ONLINE} | {
        path: LogDirState.SATURATED
    }
    (event,) = [line for line in logged if line["event"] == "log_dir_saturated"]
    assert f"reserve of {RESERVE} bytes" in event["reason"]
    assert not full.exists(f"{path}/{RESERVE_FILE}")


async def test_dir_opener_new_directory_without_space_for_its_id_is_offline() -> None:
    vfss = disks(1)
    full = vfss["/d2"]
    full.capacity_bytes = full.used_bytes() + 1
    dirs, _ = await open_all(vfss)
    assert dirs["/d1"].state is LogDirState.ONLINE
    assert dirs["/d2"].state is LogDirState.OFFLINE
    assert "/d2 has no space to start with" in dirs["/d2"].offline_reason
    assert "log.dir.reserve.bytes" in dirs["/d2"].offline_reason


async def test_dir_opener_full_disk_with_replicas_is_saturated() -> None:
    vfss = disks(1, 2)
    full = vfss["/d2"]
    full.make_dirs("/d2/t-0")
    full.open(f"/d2/{RESERVE_FILE}", OpenMode.CREATE).write_at(0, [b"half of one"])
    full.capacity_bytes = full.used_bytes()
    with capture_logs() as logged:
        dirs, _ = await open_all(vfss)
    assert dirs["/d2"].state is LogDirState.SATURATED
    assert dirs["/d1"].state is LogDirState.ONLINE
    assert not full.exists(f"/d2/{RESERVE_FILE}")
    assert [line["log_dir"] for line in logged if line["event"] == "log_dir_saturated"] == ["/d2"]


async def test_dir_opener_complete_reserve_needs_no_space() -> None:
    vfss = disks(1, 2)
    await open_all(vfss)
    for vfs in vfss.values():
        await wait_unlocked(vfs)
        vfs.capacity_bytes = vfs.used_bytes() + 1
    dirs, _ = await open_all(vfss)
    assert {d.state for d in dirs.values()} == {LogDirState.ONLINE}


async def test_dir_opener_error_while_allocating_the_reserve_takes_the_directory_offline() -> None:
    vfss = disks(1, 2)
    broken = FaultVfs(vfss["/d2"])
    broken.inject(Fault(kinds=frozenset({"sync"}), path=f"*{RESERVE_FILE}"))
    dirs, _ = await open_all({"/d1": vfss["/d1"], "/d2": broken})
    assert [d.is_online for d in dirs.values()] == [True, False]


async def test_dir_opener_full_metadata_directory_logs_that_known_dirs_are_not_written() -> None:
    vfss = disks(1, 2)
    metadata = vfss["/d1"]
    metadata.make_dirs("/d1/t-0")
    metadata.capacity_bytes = metadata.used_bytes()
    with capture_logs() as logged:
        dirs, _ = await open_all(vfss)
    assert dirs["/d1"].state is LogDirState.SATURATED
    (line,) = [line for line in logged if line["event"] == "known_log_dirs_not_written"]
    assert "No space" in line["reason"]


async def test_dir_opener_full_metadata_directory_uses_its_reserve_for_known_dirs() -> None:
    vfss = disks(1)
    await open_all({"/d1": vfss["/d1"]})
    metadata = vfss["/d1"]
    await wait_unlocked(metadata)
    metadata.make_dirs("/d1/t-0")
    metadata.capacity_bytes = metadata.used_bytes()
    dirs, _ = await open_all(vfss)
    assert dirs["/d1"].state is LogDirState.SATURATED
    assert not metadata.exists(f"/d1/{RESERVE_FILE}")
    known = read_known_dirs(metadata, "/d1")
    assert known.ids["/d2"] == dirs["/d2"].directory_id
