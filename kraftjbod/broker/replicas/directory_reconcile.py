"""PURE. Where a replica belongs: metadata's directory against the copies found on disk.

One pure function over the table of KIP-858, "Replica management", and of KIP-113, "Handle failure
that happens when broker is moving data or swapping replica".

* A directory is *unknown* if it is not online here and is none of the reserved ids; it may be the
  dead one, or one that was taken out of ``log.dirs``.
* While a directory is offline, a replica that may live there is not made anew elsewhere: the empty
  copy could be taken for the real one, and the healthy disks would fill with copies of it.
* A replica that counts as in sync, or that led last, and whose copy is gone is reported as LOST,
  which is what that id is for, before an empty or an unfinished one takes its place: that one must
  not count as in sync, and must not be elected. This is stricter than the KIPs' text. The last one
  stays without a log until its disk is back or the operator gives its records up; what a move had
  copied is kept.
* A log that nothing says was ever made is not gone: see ``Wanted.was_made``.
* A move that was going on goes on: with both copies here nothing else can be decided at once.
* The source of a move that the controller had agreed to is whole if this broker noted that: it
  serves when the target is dead.
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

    ``directory_id`` is this broker's entry in the partition's directories.
    """

    topic_id: TopicId
    directory_id: DirectoryId
    is_new: bool
    """It came into being while this broker followed the metadata, so that no disk which died can
    hold a copy; at a start it is False for all."""
    is_counted: bool
    """This broker holds all that is committed, or led last: it may be elected for that."""
    is_last: bool = False
    """Nobody else is known to hold all that is committed."""
    was_made: bool = True
    """A directory that is online remembers a log of it. One that was never made held nothing."""
    may_lose_records: bool = False
    """The operator's word: unclean elections are allowed."""
    moved_from: DirectoryId | None = None
    """A move into ``directory_id`` was under way, and until its end the copy here is whole."""


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
    """Report the replica's directory to the controller; serve the copy if there is one."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class KeepAsIs:
    """Serve the copy; metadata is right."""


@dataclass(frozen=True, slots=True)
class WaitOffline:
    """Make nothing and assign nothing: the replica may live in a directory that is offline.

    A copy that is served already goes on being served.
    """


@dataclass(frozen=True, slots=True)
class WaitOutOfSync:
    """Make nothing: the copy is lost, and whatever took its place would count as in sync.

    A future copy is kept: it may be all there is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMove:
    """Go on copying to the future copy; ``is_accepted``: the controller has agreed already."""

    is_accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptFuture:
    """Let the future copy in this directory be the replica, and assign the replica to it."""

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
    """What to do about one partition, in order; ``wanted`` is None if it has no replica here.

    ``future`` is the copy that a move was building. Exactly one action is about the current copy,
    or none if there is neither a copy nor a wish for one.
    """
    assert copy is None or copy.directory_id in dirs.online, (copy, dirs)
    assert future is None or future.directory_id in dirs.online, (future, dirs)
    actions: list[Action] = []
    # Of another topic: it was deleted and made anew while this disk was away.
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
            else _with_future_alone(wanted, future, dirs)
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
        # It was made since, and no copy on a dead disk counts for more.
        return Assign(directory_id=copy.directory_id)
    if dirs.any_offline and copy.directory_id != wanted.moved_from:
        # The dead disk may hold the real copy, and this one may be an old one that came back.
        return WaitOffline()
    return Assign(directory_id=copy.directory_id)


def _with_both(
    wanted: Wanted, copy: LocalCopy, future: LocalCopy, dirs: LocalDirs
) -> tuple[Action, ...]:
    if wanted.directory_id == future.directory_id:
        # The controller had agreed before the two changed places.
        return (KeepAsIs(), ResumeMove(is_accepted=True))
    serving = _with_copy(wanted, copy, dirs)
    if isinstance(serving, WaitOffline):
        return (serving,)
    return (serving, ResumeMove(is_accepted=False))


def _with_future_alone(wanted: Wanted, future: LocalCopy, dirs: LocalDirs) -> Action:
    """KIP-113: the future copy takes the place of the other one, if no dead disk may hold that.

    It may miss acknowledged records: as a follower it is truncated and catches up, but it must not
    lead.
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
    # While a directory is offline a log of it may have been made there before that was reported.
    may_be_unmade = is_here or (is_undecided and not dirs.any_offline)
    if wanted.is_last and may_be_unmade and not wanted.was_made:
        return make
    # The disk was replaced by an empty one, lost what it held, or was taken out of log.dirs.
    return _out_of_sync_first(wanted, make)


def _out_of_sync_first(wanted: Wanted, make: Action) -> Action:
    """``make`` gives a log that may lack acknowledged records: not while it counts as in sync.

    The last one in sync stays so, without a log, but for the operator's word; and it is reported
    even then, because it must not lead on in the epoch in which it acknowledged them.
    """
    if not wanted.is_counted:
        return make
    if wanted.directory_id != LOST_DIR:
        return Assign(directory_id=LOST_DIR)
    return make if wanted.is_last and wanted.may_lose_records else WaitOutOfSync()


def _is_undecided(directory_id: DirectoryId) -> bool:
    return directory_id in (UNASSIGNED_DIR, MIGRATING_DIR)
