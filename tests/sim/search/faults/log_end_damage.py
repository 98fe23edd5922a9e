"""``damage_log_end``: rot or cut off the last entries of a controller's metadata log.

A voter that recognizes the damage may lose entries that it acknowledged: it is mute until it holds
them again (raft/log/damaged_end.py). Damage that looks like an unfinished write cannot be
recognized. It strikes only entries that a majority holds without this voter, so that no committed
entry is lost. That is the purpose of TigerBeetle's fault atlas.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from kraftjbod.raft.log.log_store import QUORUM_STATE
from kraftjbod.raft.log.quorum_state import decode_quorum_state
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk
from tests.sim.search.metadata_files import EntryPlace, durable_entries, segment_paths

#: The first damaged entry is among so many last entries of the log.
_LAST_ENTRIES: Final = 12
#: Number of damages to draw until one leaves the cluster recoverable.
_TRIES: Final = 8


class EndDamage(StrEnum):
    """How the end of a log is damaged."""

    FLIPPED = "a bit flipped"
    """In one entry; the entries after it are intact."""
    TORN = "torn"
    """The file ends inside an entry."""
    ZEROED = "zeroed"
    """From inside an entry to the end of the file."""
    LOST_SEGMENT = "without its last segment"


class LogEndDamage(NamedTuple):
    """A damage, and its consequence for the next start."""

    text: str
    proven_end: int | None
    """The offset of the last lost entry, if the files prove that it had been durable."""


class _Draw(NamedTuple):
    damage: EndDamage
    path: str
    entries: Sequence[EntryPlace]
    """The damaged entry and all later ones: the voter drops them, or does not find them."""

    def __str__(self) -> str:
        where = f" at entry {self.entries[0].stored.entry.offset}" if self.entries else ""
        return f"{self.path} is {self.damage}{where}"


def damage_log_end(
    disk: SimulatedDisk, others: Sequence[SimulatedDisk], holders: int, rng: random.Random
) -> LogEndDamage | None:
    """Damage the end of the log on ``disk``, whose controller does not run.

    :param others: the metadata disks of the other voters.
    :param holders: how many of them have to hold an entry whose loss cannot be recognized.
    :return: the damage; None if no drawn damage leaves the cluster recoverable.
    """
    paths, places = segment_paths(disk), durable_entries(disk)
    for _ in range(_TRIES if places else 0):
        draw = _draw(paths[-1], places, rng)
        is_recognizable = _is_recognizable(disk, draw, paths[-1])
        if is_recognizable or _is_held(draw, others, holders):
            _damage(disk, draw, rng)
            is_proven = is_recognizable and len(draw.entries) > 0
            proven_end = draw.entries[-1].stored.entry.offset if is_proven else None
            return LogEndDamage(str(draw), proven_end)
    return None


def _draw(last_path: str, places: Sequence[EntryPlace], rng: random.Random) -> _Draw:
    damage = rng.choice(list(EndDamage))
    if damage is EndDamage.LOST_SEGMENT:
        return _Draw(damage, last_path, [place for place in places if place.path == last_path])
    last = [place for place in places if place.path == places[-1].path]
    struck = places if damage is EndDamage.FLIPPED else last
    entries = struck[-rng.randint(1, min(_LAST_ENTRIES, len(struck))) :]
    return _Draw(damage, entries[0].path, entries)


def _is_recognizable(disk: SimulatedDisk, draw: _Draw, last_path: str) -> bool:
    """Whether the log's files prove that the first damaged entry had been durable."""
    if not draw.entries or draw.path != last_path:
        return True
    offset = draw.entries[0].stored.entry.offset
    text = disk.vfs.read_if_exists(f"{_directory(disk)}/{QUORUM_STATE}")
    if text is not None and offset < decode_quorum_state(bytes(text)).log_end:
        return True
    later = draw.entries[1:] if draw.damage is EndDamage.FLIPPED else ()
    return any(place.stored.append_start > offset for place in later)


def _is_held(draw: _Draw, others: Sequence[SimulatedDisk], holders: int) -> bool:
    """Return whether ``holders`` of the other disks have each entry of ``draw``."""
    lost = {place.stored.entry for place in draw.entries}
    held = [{place.stored.entry for place in durable_entries(one)} for one in others]
    return sum(lost <= entries for entries in held) >= holders


def _damage(disk: SimulatedDisk, draw: _Draw, rng: random.Random) -> None:
    if draw.damage is EndDamage.LOST_SEGMENT:
        disk.vfs.unlink_if_exists(draw.path)
        disk.vfs.sync_dir(_directory(disk))
        return
    place, file = draw.entries[0], disk.vfs.open(draw.path, OpenMode.READ_WRITE)
    file.sync()
    at = place.position + rng.randrange(place.stored.size_bytes)
    match draw.damage:
        case EndDamage.FLIPPED:
            file.rot(at)
        case EndDamage.TORN:
            file.truncate(at)
        case EndDamage.ZEROED:
            file.write_at(at, [bytes(file.size() - at)])
    file.sync()


def _directory(disk: SimulatedDisk) -> str:
    return f"{disk.path}/{CLUSTER_METADATA_DIR}"
