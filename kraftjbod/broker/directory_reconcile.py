"""Where a replica belongs: metadata's directory against the copies found on disk.

One pure function over the table of KIP-858, "Replica management", and of KIP-113, "Handle failure
that happens when broker is moving data or swapping replica".

* A directory is *unknown* if it is not online here and is none of the reserved ids; it may be the
  dead one, or one that was taken out of ``log.dirs``.
* While a directory is offline, a replica that may live there is not made anew elsewhere: the empty
  copy could be taken for the real one, and the healthy disks would fill with copies of it.
* A member of the ISR whose copy is gone is reported as LOST, which is what that id is for, before
  an empty log takes its place: the empty one must not count as in sync, and must not be elected.
  This is stricter than the KIPs' text. The last member stays without a log.
* A move that was going on goes on: with both copies here nothing else can be decided at once.
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
    the replica came into being while this broker followed the metadata, so that no disk which
    died can hold a copy; at start it is False for all. ``is_in_isr`` is about this broker.
    ``may_lose_records`` is the operator's word: unclean elections are allowed.
    """

    topic_id: TopicId
    directory_id: DirectoryId
    is_new: bool
    is_in_isr: bool
    may_lose_records: bool = False


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


@dataclass(frozen=True, slots=True)
class WaitOutOfSync:
    """Make nothing: the copy is lost, and an empty log would still count as in sync."""


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
    if dirs.any_offline:
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
    """KIP-113: the future copy takes the place of the other one, if no dead disk may hold that."""
    if not dirs.any_offline:
        return AdoptFuture(directory_id=future.directory_id)
    if _is_undecided(wanted.directory_id):
        return Assign(directory_id=LOST_DIR)
    if wanted.directory_id != future.directory_id:
        return WaitOffline()
    # It may miss acknowledged records: as a follower it is cut and catches up, but it must not
    # lead. That it was assigned to is what the controller knows.
    if wanted.is_in_isr:
        return Assign(directory_id=LOST_DIR)
    return AdoptFuture(directory_id=future.directory_id)


def _without_copy(wanted: Wanted, dirs: LocalDirs) -> Action:
    if wanted.directory_id in dirs.online:
        return Create(directory_id=wanted.directory_id)
    if wanted.is_new:
        return CreateChosen()
    is_undecided = _is_undecided(wanted.directory_id)
    if dirs.any_offline:
        if not is_undecided:
            return WaitOffline()
        # Its copy may have been made in the dead directory before that could be reported.
        return Assign(directory_id=LOST_DIR) if wanted.is_in_isr else CreateChosen()
    if is_undecided or not wanted.is_in_isr or wanted.may_lose_records:
        return CreateChosen()
    # The disk was replaced by an empty one, or taken out of log.dirs with what it held.
    return WaitOutOfSync() if wanted.directory_id == LOST_DIR else Assign(directory_id=LOST_DIR)


def _is_undecided(directory_id: DirectoryId) -> bool:
    return directory_id in (UNASSIGNED_DIR, MIGRATING_DIR)
