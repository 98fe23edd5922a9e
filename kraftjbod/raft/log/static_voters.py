"""DISK. ``static-voters``: the node ids of the voters of a log that does not name them itself.

With another set of voters a leader could be elected that lacks committed entries. Examples: one
voter of three is configured as the only one, or two new voters join the only one with the log. Once
the log itself names its voters (``kraft.version`` 1), configuration and this file do not count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftjbod.core.errors import InconsistentStorageError, StartupError
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.storage.vfs import Vfs, write_atomically

STATIC_VOTERS: Final = "static-voters"
VOTER_DIRECTORIES: Final = "voter-directories"
"""File in which known_voters.py stores the directory ids of the voters."""


class VotersToNote(NamedTuple):
    path: str
    text: str
    can_wait: bool
    """Whether the log is older than this file, so that starting without it is as safe as before."""


def note_voters(vfs: Vfs, voters: VotersToNote) -> None:
    write_atomically(vfs, voters.path, voters.text.encode())


def require_same_voters(
    vfs: Vfs, directory: str, voters: VoterSet, *, is_new: bool, is_fork: bool = False
) -> VotersToNote | None:
    """Raise an error unless ``voters`` may vote in the log in ``directory``.

    :param is_new: nothing was ever written to the log.
    :param is_fork: an operator abandoned all other voters, so any set is accepted.
    :returns: the content of the file to be written; None if the file exists or is not needed.
    :raises StartupError: the log had other voters; the message says what to do.
    """
    if not voters.is_static:
        return None
    path, now = f"{directory}/{STATIC_VOTERS}", sorted(key.node_id for key in voters)
    text = None if is_fork else vfs.read_if_exists(path)
    if text is None:
        if not is_fork:
            _require_not_known_otherwise(vfs, directory, now, is_new=is_new)
        return VotersToNote(path, json.dumps(now), can_wait=not (is_new or is_fork))
    try:
        noted = [int(node_id) for node_id in json.loads(bytes(text))]
    except (ValueError, TypeError) as e:
        raise InconsistentStorageError(
            f"{path} is damaged ({e}): put the node ids of the voters there, as [100, 101, 102]"
        ) from e
    if noted != now:
        raise _other_voters(directory, now, f"voters are {noted}")
    return None


def _require_not_known_otherwise(
    vfs: Vfs, directory: str, now: Sequence[int], *, is_new: bool
) -> None:
    """Raise an error if a log without this file had other voters.

    The file of voter directories exists only if the log had several voters.

    :raises StartupError: it had other voters.
    """
    heard_others = vfs.exists(f"{directory}/{VOTER_DIRECTORIES}")
    if heard_others and len(now) == 1:
        raise _other_voters(directory, now, "has had several voters")
    if not is_new and not heard_others and len(now) > 1:
        wrote = f"if you removed {VOTER_DIRECTORIES} there, write {{}} into a file of that name"
        raise _other_voters(directory, now, f"has had one voter, as far as it knows ({wrote})")


def _other_voters(directory: str, now: Sequence[int], instead: str) -> StartupError:
    instead = instead if instead.startswith("has") else f"is one whose {instead}"
    return StartupError(
        f"controller.quorum.voters names {now}, but the metadata log in {directory} {instead}: "
        "another set of voters could elect one that does not know all that was decided. Put that "
        "key back to what it was; docs/controllers.md says how one controller becomes three, and "
        "three one, while the cluster works. If that log was begun by mistake, with a wrong list "
        "on an empty disk, format the directory again, with kraftjbod-storage format --replace-lost"
    )
