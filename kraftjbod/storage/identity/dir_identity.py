"""DISK. ``identify``: compares the disk found at a path with the directories that the node
remembers.

A start and the addition of a directory at run time use the same pure function. Each wrong disk is
refused alone. The caller decides whether the node can run without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.storage.dir_names import META_PROPERTIES
from kraftjbod.storage.identity.known_dirs import KnownDirs
from kraftjbod.storage.meta_properties import MetaProperties


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The disk is the directory with this id."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class Unnamed:
    """The disk has no id and may get one: it is new, or was formatted by a version without ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The disk is not accepted.

    ``directory_id`` is the id that the node expects at the path; None if it expects none.
    """

    directory_id: DirectoryId | None
    reason: str


Identity = Found | Unnamed | Refused


def identify(
    path: str,
    properties: MetaProperties | None,
    *,
    known: KnownDirs,
    present: Mapping[DirectoryId, str],
    cluster_id: str,
    node_id: BrokerId,
) -> Identity:
    """Return which directory the disk at ``path`` is.

    * :class:`Found`: it has a directory id and belongs to this node, remembered or not.
    * :class:`Unnamed`: it has no directory id, and may get one.
    * :class:`Refused`: it belongs to another node or cluster, has an unknown id where the node
      remembers another directory, or has no ``meta.properties`` although the node remembers a
      directory at ``path``.

    :param properties: content of its ``meta.properties``; None if the file does not exist.
    :param known: the directories that this node remembers.
    :param present: paths of the directories that were found just now, by id.
    """
    remembered = known.ids.get(path)
    # If the remembered directory is at another path now, this disk replaces none.
    has_moved = remembered is not None and present.get(remembered, path) != path
    awaited = None if has_moved else remembered
    if properties is None:
        if remembered is None:
            return Unnamed()
        return Refused(directory_id=awaited, reason=_missing(path, remembered, present))
    if (reason := foreign(path, properties, cluster_id=cluster_id, node_id=node_id)) is not None:
        return Refused(directory_id=awaited, reason=reason)
    found = properties.directory_id
    if found is None:
        return Unnamed()
    if awaited is not None and found != awaited and known.path_of(found) is None:
        return Refused(directory_id=awaited, reason=_replaced(path, awaited, found))
    return Found(directory_id=found)


def foreign(
    path: str, properties: MetaProperties, *, cluster_id: str, node_id: BrokerId
) -> str | None:
    """Return why the disk cannot belong to this node: another cluster id, another node id, or a
    reserved directory id. Return None if none of these applies.
    """
    what = "the disk" if properties.directory_id is None else f"directory {properties.directory_id}"
    theirs = properties.cluster_id
    if theirs is not None and theirs != cluster_id:
        return (
            f"{what} at {path} belongs to cluster {theirs}, and this node to {cluster_id}: "
            f"mount the disk that belongs there"
        )
    if properties.node_id is not None and properties.node_id != node_id:
        return (
            f"{what} at {path} belongs to node {properties.node_id}, and this is node {node_id}: "
            f"mount the disk that belongs there"
        )
    if properties.directory_id is not None and properties.directory_id.is_reserved:
        return f"Invalid reserved directory ID {properties.directory_id} in {path}"
    return None


def _missing(path: str, remembered: DirectoryId, present: Mapping[DirectoryId, str]) -> str:
    if remembered in present:
        return (
            f"directory {remembered} was at {path} and is at {present[remembered]} now: there is "
            f"no {META_PROPERTIES} at {path}, so take it out of log.dirs, or mount its disk"
        )
    return (
        f"directory {remembered} is missing from {path}: there is no {META_PROPERTIES}, so its "
        f"disk is not mounted or was wiped; mount it, or, while the broker runs from other "
        f"directories, give the directory up with kraftjbod-log-dirs --forget"
    )


def _replaced(path: str, awaited: DirectoryId, found: DirectoryId) -> str:
    return (
        f"directory {awaited} is missing from {path}: the disk there is directory {found}, which "
        f"this node never had; mount the right disk, or, while the broker runs from other "
        f"directories, give {awaited} up with kraftjbod-log-dirs --forget and take {found} in "
        f"with --add"
    )
