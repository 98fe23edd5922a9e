"""Invariants of a cluster at rest: no files of operations that ended long ago, and no useless
open files.

Each function returns one sentence per violation. Delayed work, such as the removal of a ``-delete``
directory, counts as a violation until it is done, so callers repeat the check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kraftjbod.raft.log.snapshot_files import PART_SUFFIX
from kraftjbod.storage.dir_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    EXPIRED_SUFFIX,
    SWAP_SUFFIX,
    ReplicaDirKind,
    parse_replica_dir,
)
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs

_UNFINISHED: Final = (PART_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX, EXPIRED_SUFFIX, SWAP_SUFFIX)
#: Replica directories that exist for as long as an operation runs, and no longer.
_TRANSIENT: Final = (ReplicaDirKind.DELETE, ReplicaDirKind.FUTURE)
#: A start lists these and leaves them unchanged. Whether an ``.expired`` or ``.swap`` file in a
#: stray belongs to the log is decided when the stray is restored and loaded.
_KEPT_AS_FOUND: Final = ReplicaDirKind.STRAY


def unfinished(disks: Mapping[str, MemVfs]) -> list[str]:
    """:param disks: by the path of the directory to search, two levels deep."""
    found = []
    for path, vfs in disks.items():
        for top in vfs.list_dir(path):
            names = [top.name]
            if top.is_dir:
                names += [f"{top.name}/{file.name}" for file in vfs.list_dir(f"{path}/{top.name}")]
            named = parse_replica_dir(top.name)
            if named is not None and named.kind in _TRANSIENT:
                found.append(f"{path}/{top.name} is left")
            elif named is None or named.kind is not _KEPT_AS_FOUND:
                left = [name for name in names if name.endswith(_UNFINISHED)]
                found += [f"{path}/{name} is left" for name in left]
    return sorted(found)


def left_open(
    who: str,
    opened: Iterable[tuple[str, MemFile]],
    disks: Mapping[str, MemVfs],
    hosted: Collection[str],
) -> list[str]:
    """Return files that a process holds open and that belong to no log that it hosts.

    :param opened: each open file, with the path by which it was opened.
    :param disks: the log directories of the process by path.
    :param hosted: the names of the replica directories in use, such as ``orders-3``.
    """
    names = {
        id(vfs.open(f"{path}/{name}", OpenMode.READ)): (path, name)
        for path, vfs in disks.items()
        for name in _files_below(vfs, path)
    }
    found = []
    for opened_as, file in opened:
        if id(file) not in names:
            found.append(f"{who} has {opened_as} open, which is deleted")
            continue
        path, name = names[id(file)]
        replica, _, rest = name.partition("/")
        if rest and parse_replica_dir(replica) is not None and replica not in hosted:
            found.append(f"{who} has {path}/{name} open, and hosts no such log")
    return sorted(set(found))


def _files_below(vfs: MemVfs, path: str) -> Iterator[str]:
    """Yield the names of the files in ``path`` and in its directories, relative to ``path``.

    Symbolic links are skipped: only another program creates them.
    """
    for top in vfs.list_dir(path):
        if not top.is_dir:
            if not top.is_link:
                yield top.name
            continue
        for entry in vfs.list_dir(f"{path}/{top.name}"):
            if not entry.is_dir and not entry.is_link:
                yield f"{top.name}/{entry.name}"
