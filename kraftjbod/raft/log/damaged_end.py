"""DISK. A log whose end is damaged goes on before it, where others hold what it gives up.

First the replica is mute in a new term, durably (``HardState.mute_before_term``), then the end
goes, newest first: a crash in between leaves a log that is shorter, and a replica that knows it.
What goes is set aside beside the log, as ``<20-digit offset>.damaged``, for people: if others
should be damaged too, nobody can say before what is in it.
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
    """What was durable once cannot be read, from somewhere on."""

    def __init__(self, what: str) -> None:
        """:param what: and where."""
        super().__init__(
            f"{what}. If this is the only controller, restore its metadata directory from a backup "
            "(docs/metadata-backup.md). If others lead without it, replace it as if its disk was "
            "lost, under a new directory id, for it may have been counted when those entries were "
            "committed: docs/controllers.md has the commands, under 'A metadata log is damaged'. "
            "If others are damaged too, format none of them"
        )
        self.what = what


def may_give_up(voters: VoterSet, key: ReplicaKey) -> bool:
    """Whether the others elect without this one, which may never be the only one that knew.

    :param voters: as far as the log can be read.
    """
    return voters.is_majority(one for one in voters if one != voters.known_as(key))


def made_mute(hard_state: HardState) -> HardState:
    """In no term in which it may have promised anything; see core.py for why that is enough."""
    term = hard_state.term + 1
    return HardState(term=term, mute_before_term=term)


def set_file_aside(vfs: Vfs, path: str) -> None:
    """All of a segment."""
    vfs.rename(path, path.removesuffix(".log") + _SUFFIX)
    with FailsAs(OpKind.FLUSH):
        vfs.sync_dir(path.rpartition("/")[0])


def set_end_aside(vfs: Vfs, path: str, file: VfsFile, position: int, offset: int) -> None:
    """A segment from ``position`` on, where the entry ``offset`` should stand."""
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
