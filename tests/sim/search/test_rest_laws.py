from __future__ import annotations

from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.storage.dir_names import ReplicaDirKind, doomed_dir_name, future_dir_name
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.search.rest_laws import unfinished

_TP = TopicPartition("t", 0)


def _disk(*paths: str) -> MemVfs:
    vfs = MemVfs()
    for path in paths:
        vfs.make_dirs(path.rpartition("/")[0])
        vfs.open(path, OpenMode.CREATE)
    return vfs


def test_unfinished_files_and_directories_are_found() -> None:
    doomed = doomed_dir_name(_TP, ReplicaDirKind.DELETE, Uuid(bytes(16)))
    future = future_dir_name(_TP, Uuid(bytes(16)))
    disk = _disk(
        "/d/t-0/0.log",
        "/d/t-0/0.log.swap",
        "/d/t-0/0.index.deleted",
        "/d/snapshot.part",
        f"/d/{doomed}/0.log",
        f"/d/{future}/0.log",
    )
    left = ("snapshot.part", "t-0/0.index.deleted", "t-0/0.log.swap", doomed, future)
    assert unfinished({"/d": disk}) == sorted(f"/d/{name} is left" for name in left)
