"""WIRE. Finds signs that a controller about to be formatted had metadata that was lost.

An empty metadata directory may be that of a new cluster, or of a cluster whose controller lost its
disk. Signs of a lost disk are files that are left in the directory, and used directories of brokers
of the same cluster nearby on this machine.

Without a sign, the metadata may still have been lost. Brokers that know other metadata refuse the
controller in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.dir_names import (
    APPLIED_METADATA,
    BOOTSTRAP_FILE,
    CLUSTER_METADATA_DIR,
    META_PROPERTIES,
    parse_replica_dir,
)
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import RealVfs

#: Maximum number of directories that are searched.
_MOST_NEIGHBOURS: Final = 2_000


def find_earlier_cluster(metadata_dir: str, cluster_id: str | None) -> str | None:
    """Return a sign that the cluster existed before, as "/d1 is left of it"; None if none is found.

    Signs are files in ``metadata_dir``, and used broker directories near it.

    :param cluster_id: the id that the broker directories must have. None for a controller that
        receives its log from others; then only files in ``metadata_dir`` are signs.
    """
    home = Path(metadata_dir)
    for name in (CLUSTER_METADATA_DIR, BOOTSTRAP_FILE):
        if (home / name).exists():
            return f"{home / name} is left of it"
    if cluster_id is None:
        return None
    for neighbour in islice(_neighbours(home), _MOST_NEIGHBOURS):
        if _is_of_cluster(neighbour, cluster_id) and _was_used(neighbour):
            return f"{neighbour} belongs to a broker of that cluster and has been used"
    return None


def _neighbours(home: Path) -> Iterator[Path]:
    """Yield directories up to two levels below the parent and the grandparent of ``home``."""
    for root in home.parents[:2]:
        for child in _children(root):
            yield from chain([child], _children(child))


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(child for child in directory.iterdir() if child.is_dir())
    except OSError:
        return []  # Not readable, or deleted meanwhile.


def _is_of_cluster(directory: Path, cluster_id: str) -> bool:
    try:
        found = read_meta_properties(RealVfs(), str(directory / META_PROPERTIES))
    except (StartupError, OSError):
        return False
    return found is not None and found.cluster_id == cluster_id


def _was_used(directory: Path) -> bool:
    if (directory / APPLIED_METADATA).exists():
        return True
    names = {child.name for child in _children(directory)} - {CLUSTER_METADATA_DIR}
    return any(parse_replica_dir(name) is not None for name in names)
