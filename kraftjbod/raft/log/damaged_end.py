"""DISK. Removal of the damaged end of a metadata log, if the other voters still have its entries.

First the replica becomes mute in a new term, durably (``HardState.mute_before_term``). Then the
damaged end is removed, newest first, so that a crash in between leaves a shorter log and a mute
replica.

Removed parts are kept beside the log as ``<20-digit offset>.damaged``, for experts: their content
may be needed if other voters are damaged too (ADR 95).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kraftjbod.core.errors import InconsistentStorageError
from kraftjbod.raft.machine.messages import HardState
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile

_SUFFIX: Final = ".damaged"


class DamagedLogError(InconsistentStorageError):
    """Entries that were durable cannot be read, from some offset on.

    The message says what to do.
    """

    def __init__(self, what: str) -> None:
        """Create the error.

        :param what: the damage and its place, for the message.
        """
        super().__init__(
            f"{what}. If this is the only controller, restore its metadata directory from a backup "
            "(docs/metadata-backup.md). If others lead without it, replace it as if its disk was "
            "lost, under a new directory id, for it may have been counted when those entries were "
            "committed: docs/controllers.md has the commands, under 'A metadata log is damaged'. "
            "If others are damaged too, format none of them"
        )
        self.what = what


def may_give_up(voters: VoterSet, key: ReplicaKey) -> bool:
    """Return whether the voters other than ``key`` are a majority, so that this replica cannot be
    the only replica with a committed entry.

    :param voters: the voter set according to the readable part of the log.
    """
    return voters.is_majority(one for one in voters if one != voters.known_as(key))


def made_mute(hard_state: HardState) -> HardState:
    """Return a hard state in the next term, without a vote. The replica does not vote or stand
    until its log has an entry of that term or later.
    """
    term = hard_state.term + 1
    return HardState(term=term, mute_before_term=term)


def set_file_aside(vfs: Vfs, path: str) -> None:
    """Replace the suffix ``.log`` of a segment's file by ``.damaged``, durably.

    :param path: of the segment's file.
    """
    vfs.rename(path, path.removesuffix(".log") + _SUFFIX)
    with FailsAs(OpKind.FLUSH):
        vfs.sync_dir(path.rpartition("/")[0])


def set_end_aside(vfs: Vfs, path: str, file: VfsFile, position: int, offset: int) -> None:
    """Move the end of a segment to a ``.damaged`` file, durably.

    :param position: first byte of the end.
    :param offset: first entry of the end, for the name of the new file.
    """
    directory = path.rpartition("/")[0]
    aside = f"{directory}/{offset:020d}{_SUFFIX}"
    with FailsAs(OpKind.CHECKPOINT):
        copy = vfs.open(aside, OpenMode.CREATE)
        with Undoing(partial(_discard, vfs, aside, copy)):
            copy.truncate(0)
            copy.write_at(0, [file.read_at(position, file.size() - position)])
            with FailsAs(OpKind.FLUSH):
                copy.sync()
                vfs.sync_dir(directory)
    copy.close()
    file.truncate(position)
    with FailsAs(OpKind.FLUSH):
        file.sync()


def _discard(vfs: Vfs, path: str, file: VfsFile) -> None:
    file.close()
    vfs.unlink_if_exists(path)
