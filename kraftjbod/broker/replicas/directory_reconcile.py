"""PURE. Compares a replica's directory in the metadata with the copies found on disk.

One pure function for the table of KIP-858, "Replica management", and of KIP-113, "Handle failure
that happens when broker is moving data or swapping replica".

* A directory is *unknown* if it is not online here and is no reserved id. It may be a failed
  directory, or one that was removed from ``log.dirs``.
* While a directory is offline, a replica that may be in it is not recreated elsewhere. The empty
  copy could be treated as the real one, and the healthy disks would fill with such copies.
* If the copy of a replica that counts as in sync, or that led last, is gone, it is reported as
  LOST before an empty or unfinished copy replaces it: the new copy must not count as in sync and
  must not be elected. This is stricter than the text of the KIPs. The last in-sync replica stays
  without a log until its disk returns or the operator allows unclean elections. The future copy of
  a move is kept.
* A log that was never created, as far as is known, does not count as gone: see ``Wanted.was_made``.
* A pending move continues: with both copies here no other action is possible yet.
* The source of a move that the controller accepted is complete if this broker noted the move. It
  serves if the target failed.
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
    """A copy of a replica's log in an online directory."""

    directory_id: DirectoryId
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The replica of one partition on this broker, according to the metadata.

    ``directory_id`` is this broker's entry in the partition's directories.
    """

    topic_id: TopicId
    directory_id: DirectoryId
    is_new: bool
    """The replica was created while this broker followed the metadata, so no failed disk can have a
    copy. False for all replicas at startup."""
    is_counted: bool
    """The replica has all committed records, or led last, so it may be elected."""
    is_last: bool = False
    """No other replica is known to have all committed records."""
    was_made: bool = True
    """An online directory has a record of the log. A log that was never created had no records."""
    may_lose_records: bool = False
    """The operator allowed unclean elections."""
    moved_from: DirectoryId | None = None
    """The source of an unfinished move into ``directory_id``. The copy in it is complete until the
    move ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDirs:
    """The online directories of this broker, and whether any other directory is offline."""

    online: Collection[DirectoryId]
    any_offline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStray:
    """Stop serving the copy in this directory permanently, and set it aside."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create an empty log in this directory."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class CreateChosen:
    """Choose a directory, create an empty log in it, and assign the replica to that directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Report to the controller that the replica is in ``directory_id``, and serve the copy, if
    any."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class KeepAsIs:
    """Serve the copy. The metadata names its directory already."""


@dataclass(frozen=True, slots=True)
class WaitOffline:
    """Create and assign nothing: the replica may be in an offline directory.

    A copy that is already served stays in service.
    """


@dataclass(frozen=True, slots=True)
class WaitOutOfSync:
    """Create nothing: the copy is lost, and an empty one would count as in sync.

    A future copy is kept, because it may have the only records.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMove:
    """Continue the move to the future copy.

    ``is_accepted``: the controller has assigned the replica to the move's target.
    """

    is_accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptFuture:
    """Make the future copy in this directory the current copy, and assign the replica to it."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFuture:
    """Remove the future copy in this directory."""

    directory_id: DirectoryId


Action = (
    RemoveStray
    | Create
    | CreateChosen
    | Assign
    | KeepAsIs
    | WaitOffline
    | WaitOutOfSync
    | ResumeMove
    | AdoptFuture
    | DropFuture
)


def reconcile(
    wanted: Wanted | None, copy: LocalCopy | None, future: LocalCopy | None, dirs: LocalDirs
) -> tuple[Action, ...]:
    """Return the actions for one partition, in order.

    A copy with another topic id than the replica is removed first and then treated as absent.
    Besides that, exactly one action is about the current copy, or none if there is no replica.

    :param wanted: None if the partition has no replica here.
    :param copy: the current copy; None if no online directory has one.
    :param future: the copy that a move was building, if an online directory has one.
    :param dirs: the directories of this broker.
    """
    assert copy is None or copy.directory_id in dirs.online, (copy, dirs)
    assert future is None or future.directory_id in dirs.online, (future, dirs)
    actions: list[Action] = []
    # The copy of a deleted topic: the topic was recreated while this disk was away.
    if copy is not None and (wanted is None or copy.topic_id != wanted.topic_id):
        actions.append(RemoveStray(directory_id=copy.directory_id))
        copy = None
    if future is not None and (wanted is None or future.topic_id != wanted.topic_id):
        actions.append(DropFuture(directory_id=future.directory_id))
        future = None
    if wanted is None:
        return tuple(actions)
    if copy is None:
        actions.append(
            _without_copy(wanted, dirs)
            if future is None
            else _adopt_future_copy(wanted, future, dirs)
        )
    elif future is None:
        actions.append(_with_copy(wanted, copy, dirs))
    else:
        actions += _with_both(wanted, copy, future, dirs)
    return tuple(actions)


def _with_copy(wanted: Wanted, copy: LocalCopy, dirs: LocalDirs) -> Action:
    if wanted.directory_id == copy.directory_id:
        return KeepAsIs()
    if _is_undecided(wanted.directory_id) or wanted.directory_id in dirs.online:
        return Assign(directory_id=copy.directory_id)
    if wanted.directory_id == LOST_DIR and not wanted.is_counted:
        # The copy was created later, and no copy on a failed disk has precedence.
        return Assign(directory_id=copy.directory_id)
    if dirs.any_offline and copy.directory_id != wanted.moved_from:
        # The failed disk may have the real copy, and this may be an old copy that returned.
        return WaitOffline()
    return Assign(directory_id=copy.directory_id)


def _with_both(
    wanted: Wanted, copy: LocalCopy, future: LocalCopy, dirs: LocalDirs
) -> tuple[Action, ...]:
    if wanted.directory_id == future.directory_id:
        # The controller accepted the move before the copies were swapped.
        return (KeepAsIs(), ResumeMove(is_accepted=True))
    serving = _with_copy(wanted, copy, dirs)
    if isinstance(serving, WaitOffline):
        return (serving,)
    return (serving, ResumeMove(is_accepted=False))


def _adopt_future_copy(wanted: Wanted, future: LocalCopy, dirs: LocalDirs) -> Action:
    """Return the action if only a future copy exists: adopt it (KIP-113) or wait.

    A future copy is not adopted while an offline directory may have the current copy, because a
    future copy may lack acknowledged records. As a follower, such a copy is truncated and catches
    up, but it must not lead.
    """
    may_be_elsewhere = not _is_undecided(wanted.directory_id) and (
        wanted.directory_id != future.directory_id
    )
    if dirs.any_offline and may_be_elsewhere:
        return WaitOffline()
    return _out_of_sync_first(wanted, AdoptFuture(directory_id=future.directory_id))


def _without_copy(wanted: Wanted, dirs: LocalDirs) -> Action:
    is_here = wanted.directory_id in dirs.online
    make = Create(directory_id=wanted.directory_id) if is_here else CreateChosen()
    if wanted.is_new:
        return make
    is_undecided = _is_undecided(wanted.directory_id)
    if dirs.any_offline and not is_here and not is_undecided:
        return WaitOffline()
    # An offline directory may have a log that was created there but not reported yet.
    may_be_unmade = is_here or (is_undecided and not dirs.any_offline)
    if wanted.is_last and may_be_unmade and not wanted.was_made:
        return make
    # The disk was replaced by an empty one, lost its files, or was removed from log.dirs.
    return _out_of_sync_first(wanted, make)


def _out_of_sync_first(wanted: Wanted, make: Action) -> Action:
    """Return ``make`` only if the replica does not count as in sync, else the action that precedes
    it.

    The new log may lack acknowledged records. The last in-sync replica stays in sync without a
    log, unless unclean elections are allowed. Even then it is reported as LOST first, because it
    must not lead in the epoch of these records.
    """
    if not wanted.is_counted:
        return make
    if wanted.directory_id != LOST_DIR:
        return Assign(directory_id=LOST_DIR)
    return make if wanted.is_last and wanted.may_lose_records else WaitOutOfSync()


def _is_undecided(directory_id: DirectoryId) -> bool:
    return directory_id in (UNASSIGNED_DIR, MIGRATING_DIR)
