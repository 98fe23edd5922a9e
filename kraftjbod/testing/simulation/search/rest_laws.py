"""WIRE. What a cluster at rest must not have left: files of operations that ended long ago.

One sentence per finding. Work that is delayed on purpose, such as the removal
of a ``-delete`` directory, counts as a finding until it is done: ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftjbod.raft.log.snapshot_files import PART_SUFFIX
from kraftjbod.storage.dir_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    ReplicaDirKind,
    parse_replica_dir,
)
from kraftjbod.testing.simulation.memory_vfs import MemVfs

_UNFINISHED: Final = (PART_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX)
#: Replica directories that exist for as long as an operation runs, and no longer.
_TRANSIENT: Final = (ReplicaDirKind.DELETE, ReplicaDirKind.FUTURE)


def unfinished(disks: Mapping[str, MemVfs]) -> list[str]:
    """:param disks: by the path of the directory that is looked through, two levels deep."""
    found = []
    for path, vfs in disks.items():
        for top in vfs.list_dir(path):
            names = [top.name]
            if top.is_dir:
                names += [f"{top.name}/{file.name}" for file in vfs.list_dir(f"{path}/{top.name}")]
            named = parse_replica_dir(top.name)
            if named is not None and named.kind in _TRANSIENT:
                found.append(f"{path}/{top.name} is left")
            else:
                left = [name for name in names if name.endswith(_UNFINISHED)]
                found += [f"{path}/{name} is left" for name in left]
    return sorted(found)
