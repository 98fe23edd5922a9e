"""Where a replica belongs: metadata's directory against the copy found on disk.

One pure function over the table of KIP-858, "Replica management".

* A directory is *unknown* if it is not online here and is none of the reserved ids; it may be the
  dead one, or one that was taken out of ``log.dirs``.
* While a directory is offline, a replica that may live there is not made anew elsewhere: the empty
  copy could be taken for the real one, and the healthy disks would fill with copies of it.
* The one case that the KIP's text leaves open to loss: a member of the ISR without a directory,
  whose copy may have been made in the dead directory before that could be reported. It is reported
  as LOST, which is what that id is for.
* A copy of an older topic with the same name is never served.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    DirectoryId,
    TopicId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """A replica's log as it lies in one of the online directories."""

    directory_id: DirectoryId
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What metadata wants of this broker for one partition.

    ``directory_id`` is this broker's entry in the partition's directories. ``is_new`` says that
    the partition came into being while this broker followed the metadata, so that no disk which
    died can hold a copy; at start it is False for all. ``is_in_isr`` is about this broker.
    """

    topic_id: TopicId
    directory_id: DirectoryId
    is_new: bool
    is_in_isr: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDirs:
    """The directories of this broker: those online, and whether any other is known to be lost."""

    online: Collection[DirectoryId]
    any_offline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStray:
    """Take the copy in this directory out of service: rename it, never serve it."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make an empty log in this directory."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class CreateChosen:
    """Choose a directory, make an empty log there, and assign the replica to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Tell the controller the replica's directory; serve the copy if there is one."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class KeepAsIs:
    """Serve the copy; metadata is right."""


@dataclass(frozen=True, slots=True)
class WaitOffline:
    """Make nothing and assign nothing: the replica may live in a directory that is offline.

    A copy that is served already goes on being served.
    """


Action = RemoveStray | Create | CreateChosen | Assign | KeepAsIs | WaitOffline


def reconcile(wanted: Wanted | None, copy: LocalCopy | None, dirs: LocalDirs) -> tuple[Action, ...]:
    """What to do about one partition, in order; ``wanted`` is None if it has no replica here."""
    assert copy is None or copy.directory_id in dirs.online, (copy, dirs)
    if wanted is None:
        return () if copy is None else (RemoveStray(directory_id=copy.directory_id),)
    if copy is None:
        return (_without_copy(wanted, dirs),)
    if copy.topic_id != wanted.topic_id:
        # The topic was deleted and made anew while this disk was away.
        return (RemoveStray(directory_id=copy.directory_id), _without_copy(wanted, dirs))
    return (_with_copy(wanted, copy, dirs),)


def _with_copy(wanted: Wanted, copy: LocalCopy, dirs: LocalDirs) -> Action:
    if wanted.directory_id == copy.directory_id:
        return KeepAsIs()
    if _is_undecided(wanted.directory_id) or wanted.directory_id in dirs.online:
        return Assign(directory_id=copy.directory_id)
    if dirs.any_offline:
        # The dead disk may hold the real copy, and this one may be an old one that came back.
        return WaitOffline()
    return Assign(directory_id=copy.directory_id)


def _without_copy(wanted: Wanted, dirs: LocalDirs) -> Action:
    if wanted.directory_id in dirs.online:
        return Create(directory_id=wanted.directory_id)
    if wanted.is_new or not dirs.any_offline:
        return CreateChosen()
    if not _is_undecided(wanted.directory_id):
        return WaitOffline()
    return Assign(directory_id=LOST_DIR) if wanted.is_in_isr else CreateChosen()


def _is_undecided(directory_id: DirectoryId) -> bool:
    return directory_id in (UNASSIGNED_DIR, MIGRATING_DIR)
