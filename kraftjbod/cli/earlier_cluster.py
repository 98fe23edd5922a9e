"""WIRE. Signs that a controller which is about to be formatted is one that was lost.

The metadata of a new cluster and of one whose controller lost its disk are alike: there is none.
What distinguishes them lies beside it: what is left in the directory itself, and the directories of
brokers of the same cluster that have been used, as far as they are on this machine and near.

Nothing is proven by finding nothing; brokers that know other metadata refuse it in any case.
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

#: Directories that are read; there may be anything beside a metadata directory.
_MOST_NEIGHBOURS: Final = 2_000


def sign_of_earlier_life(metadata_dir: str, cluster_id: str | None) -> str | None:
    """What says that the cluster has lived already, as the second half of a sentence.

    :param cluster_id: None for a controller that begins no metadata: it is given the log of others.
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
    """Directories up to two steps below the directory that holds ``home``, and the one above it."""
    for root in home.parents[:2]:
        for child in _children(root):
            yield from chain([child], _children(child))


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(child for child in directory.iterdir() if child.is_dir())
    except OSError:
        return []  # Not ours to read, or gone meanwhile.


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
