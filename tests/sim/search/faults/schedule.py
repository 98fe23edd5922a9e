"""A schedule of faults, drawn from a seed: plain values that can be replayed and shrunk.

* ``draw_schedule`` does not know the state of a run: it draws which faults are tried and when.
  budget.py decides at that time whether the cluster's promise covers the fault.
* Leaving out a fault changes no other one, because each fault has its own random choices.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from kraftjbod.testing.faults import DiskFault


class Kind(StrEnum):
    """A kind of fault, or of work of an operator."""

    KILL = "kill -9"
    STOP = "orderly stop"
    POWER_CUT = "power cut"
    """Power cut of a broker's host: unsynced data is lost, as far as a journal allows."""
    STAND_STILL = "SIGSTOP"
    """The process is paused, and continues later without knowledge of the pause."""
    LATE_LOOP = "late event loop"
    """Each event loop iteration of the broker takes long, and so does the whole process."""
    DESCRIPTORS = "file descriptors run out"
    """Files of the broker cannot be opened (EMFILE); open ones stay open."""
    CONTROLLER_KILL = "kill -9 of the controller"
    CONTROLLER_POWER_CUT = "power cut of the controller"
    EIO = "EIO"
    EIO_ONCE = "EIO of one operation"
    WRITEBACK = "writeback fails"
    """One fsync fails with EIO, later ones succeed, and some pages are not on the disk."""
    UNREPORTED_EIO = "EIO while the controller is down"
    """The directory is reattached before the controller, which was not notified, is back."""
    LOST_TAIL = "EIO, and what was not synced is lost"
    HANG = "hang"
    SLOW = "slow"
    FULL = "full"
    CLUTTER = "names of somebody else"
    """Files and dangling links that come and go while directories are listed."""
    VANISH = "unmounted"
    WIPE = "replaced by an empty disk"
    """The directory is forgotten, and the empty disk is added."""
    REMOVED = "kill -9, and replicas removed from the disks"
    """By hand, or by a repair of the file system: the disks are intact but lack the replicas."""
    ALL_STOPPED = "orderly stop of all brokers, and replicas removed from the disks"
    """Replicas of one broker. The last to stop may lead at once: the controller saw no loss."""
    LAST_STANDING = "orderly stop of the others, and a power cut"
    """The last broker leads alone, loses the end of its logs, which the others have, and is back
    first."""
    SWAPPED = "kill -9, and two disks swapped"
    MOVE_HANG = "hang in the midst of a move"
    """Around ``log.dir.io.suspect.ms``, around ``log.dir.io.timeout.ms``, or between them."""
    ROT = "bit rot"
    """A bit of a closed segment flips. Its checksum detects that, and a peer heals it."""
    ROT_BESIDE = "kill -9, and bit rot beside the log"
    """A bit of an index, a checkpoint, a producer snapshot or another small file flips."""
    LOST_END = "kill -9, and the end of a log lost"
    """At a batch boundary, or one whole segment: all remaining bytes are valid."""
    REPLICA_REMOVED = "directory of a replica removed"
    """``rm -r`` while the broker runs: open files stay open, and their names are gone."""
    REMAINS_REMOVED = "directories of deleted and stray replicas removed"
    """By an operator who needs space. The broker loses nothing and keeps its log directory."""
    MOVES = "moves"
    CORDON = "cordon"
    DRAIN = "drain"
    """All replicas of a directory move to the broker's others; it is cordoned meanwhile."""
    REATTACH = "reattach that nobody needs"
    CONFIG = "configuration change"
    REASSIGN = "reassignment"
    """Started, and replaced, cancelled or completed; some leave two replicas for a while."""
    UNREGISTER = "broker unregistered"
    """While the broker is down; it registers again when it is back. Requests begin before the
    broker is fenced, or come at once afterwards, when it still is in in-sync sets."""
    ELECT = "leaders elected by an operator"
    UNCLEAN_ELECTION = "orderly stop of all brokers, and an unclean election"
    """The broker that stopped first is elected, for a topic without acks=all: because an operator
    requests it, or because the topic allows it."""
    CANCEL_UNCLEAN = "reassignment cancelled although no original replica is in sync"
    """Of a topic without acks=all that allows unclean elections: an original replica without the
    newest records leads."""
    DOWNGRADE = "metadata.version lowered and raised"
    LOSSY_DOWNGRADE = "metadata.version lowered with loss of metadata, and raised"
    """To a level without cordons and eligible leader replicas. No broker may lose records
    meanwhile: the last in-sync replica leads, even if it lost records."""
    SETTINGS = "settings of all nodes changed"
    COORDINATED = "topics of coordinators grown or deleted"
    """An operator requests it, which is refused: groups would lose committed offsets."""
    CLOCK_JUMP = "wall clock jump"
    PARTITION = "network partition"
    ONE_WAY = "network partition, one way"
    RESET = "connections reset"
    HALF_OPEN = "connections broken for one side"
    """The other side keeps writing, and its bytes are lost, until a timeout."""
    SLOW_LINK = "slow link"
    CONTROLLER_STOP = "orderly stop of the controller"
    CONTROLLER_STAND_STILL = "SIGSTOP of the controller"
    CONTROLLER_LATE_LOOP = "late event loop of the controller"
    METADATA_EIO = "EIO of the metadata disk"
    METADATA_EIO_ONCE = "EIO of one operation of the metadata disk"
    METADATA_WRITEBACK = "writeback to the metadata disk fails"
    METADATA_LOST_TAIL = "EIO of the metadata disk, and what was not synced is lost"
    METADATA_HANG = "hang of the metadata disk"
    METADATA_HANG_OF_FOLLOWER = "hang of a follower's metadata disk while leaders change"
    """With five voters or more. Each leader is cut off from all controllers but that one."""
    METADATA_SLOW = "slow metadata disk"
    METADATA_FULL = "full metadata disk"
    METADATA_CLUTTER = "names of somebody else on the metadata disk"
    METADATA_VANISH = "unmounted metadata disk"
    METADATA_ROT = "bit rot in a metadata snapshot"
    """In the newest snapshot of one controller. The bit is restored at the end of the fault."""
    METADATA_LOST_END = "end of a metadata log damaged"
    """The last entries of one controller rot or are cut off while it is down. The others elect
    leaders without it until it holds these entries again."""
    QUORUM_CUT = "controller cut off from other controllers"
    QUORUM_ONE_WAY = "controller cut off from other controllers, one way"
    CONTROLLER_ISOLATED = "controller cut off from everybody"
    LEADERS_CUT_OFF = "successive leaders cut off"
    """Each new leader is cut off before its first entry arrives, and the former one is connected
    again. A controller that led twice has entries of two terms that no other one has."""
    LATE_FOLLOWER = "controller late, and its snapshot sent in slices"
    """It was away until the others had removed the entries that it lacks. The snapshot rots, or
    the receiver is killed or cut off, while many small slices are sent over slow links."""
    LATE_REGISTRATION = "hang of the metadata disk of a controller that registers"
    """It registers again and again, because its metadata lacks the registration."""
    SPLIT = "network split"
    """One controller and some brokers on one side, the other controllers and brokers on the other.

    Clients reach both sides. Connection attempts across may be refused, and open ones be reset.
    """
    QUORUM_RESET = "connections between controllers reset"
    QUORUM_SLOW_LINK = "slow links of a controller"
    CLOCK_DRIFT = "clock drift"
    VOTERS = "voters removed, and added again"
    """One or two of three, during all other faults. The remaining ones must be a majority."""
    METADATA_REPLACED = "metadata disk replaced by an empty one"
    """The former voter is removed, and its new directory id is added."""
    METADATA_STANDALONE = "metadata disk formatted with --standalone"
    """By mistake: the controller is its own quorum until the disk is formatted again."""
    VOTERS_CUT_OFF = "voter removed by a leader that is cut off"
    """The others elect another leader, which replaces the set of voters in that leader's log."""
    METADATA_LOST = "metadata disk lost, and formatted anew"
    """Without any request. If a majority is lost, the metadata is: brokers must refuse then."""


#: The fault of the disk, for kinds that consist of nothing else.
DISK_FAULTS: Final[Mapping[Kind, DiskFault]] = MappingProxyType(
    {
        Kind.EIO: DiskFault.EIO,
        Kind.LOST_TAIL: DiskFault.EIO,
        Kind.EIO_ONCE: DiskFault.EIO_ONCE,
        Kind.HANG: DiskFault.HANG,
        Kind.SLOW: DiskFault.SLOW,
        Kind.FULL: DiskFault.FULL,
        Kind.CLUTTER: DiskFault.CLUTTER,
        Kind.VANISH: DiskFault.UNMOUNT,
        Kind.METADATA_EIO: DiskFault.EIO,
        Kind.METADATA_EIO_ONCE: DiskFault.EIO_ONCE,
        Kind.METADATA_LOST_TAIL: DiskFault.EIO,
        Kind.METADATA_HANG: DiskFault.HANG,
        Kind.METADATA_SLOW: DiskFault.SLOW,
        Kind.METADATA_FULL: DiskFault.FULL,
        Kind.METADATA_CLUTTER: DiskFault.CLUTTER,
        Kind.METADATA_VANISH: DiskFault.UNMOUNT,
    }
)
#: Relative frequency of each kind.
WEIGHTS: Final[Mapping[Kind, int]] = MappingProxyType(
    {
        Kind.KILL: 5,
        Kind.STOP: 4,
        Kind.POWER_CUT: 6,
        Kind.STAND_STILL: 5,
        Kind.LATE_LOOP: 4,
        Kind.DESCRIPTORS: 4,
        Kind.CONTROLLER_KILL: 5,
        Kind.CONTROLLER_POWER_CUT: 3,
        Kind.EIO: 6,
        Kind.EIO_ONCE: 5,
        Kind.WRITEBACK: 5,
        Kind.UNREPORTED_EIO: 5,
        Kind.LOST_TAIL: 6,
        Kind.HANG: 5,
        Kind.SLOW: 2,
        Kind.FULL: 4,
        Kind.CLUTTER: 3,
        Kind.VANISH: 3,
        Kind.WIPE: 4,
        Kind.REMOVED: 3,
        Kind.ALL_STOPPED: 4,
        Kind.LAST_STANDING: 4,
        Kind.SWAPPED: 2,
        Kind.MOVE_HANG: 5,
        Kind.ROT: 4,
        Kind.ROT_BESIDE: 4,
        Kind.LOST_END: 4,
        Kind.REPLICA_REMOVED: 4,
        Kind.REMAINS_REMOVED: 2,
        Kind.MOVES: 9,
        Kind.CORDON: 3,
        Kind.DRAIN: 3,
        Kind.REATTACH: 2,
        Kind.CONFIG: 3,
        Kind.REASSIGN: 6,
        Kind.UNREGISTER: 3,
        Kind.ELECT: 3,
        Kind.UNCLEAN_ELECTION: 3,
        Kind.CANCEL_UNCLEAN: 3,
        Kind.DOWNGRADE: 3,
        Kind.LOSSY_DOWNGRADE: 2,
        Kind.SETTINGS: 4,
        Kind.COORDINATED: 1,
        Kind.CLOCK_JUMP: 2,
        Kind.PARTITION: 4,
        Kind.ONE_WAY: 3,
        Kind.RESET: 4,
        Kind.HALF_OPEN: 5,
        Kind.SLOW_LINK: 2,
    }
)
#: Relative frequency of each kind with several voters.
QUORUM_WEIGHTS: Final[Mapping[Kind, int]] = MappingProxyType(
    {
        **WEIGHTS,
        Kind.CONTROLLER_KILL: 9,
        Kind.CONTROLLER_POWER_CUT: 9,
        Kind.CONTROLLER_STOP: 5,
        Kind.CONTROLLER_STAND_STILL: 7,
        Kind.CONTROLLER_LATE_LOOP: 6,
        Kind.METADATA_EIO: 3,
        Kind.METADATA_EIO_ONCE: 5,
        Kind.METADATA_WRITEBACK: 5,
        Kind.METADATA_LOST_TAIL: 4,
        Kind.METADATA_HANG: 7,
        Kind.METADATA_SLOW: 3,
        Kind.METADATA_FULL: 4,
        Kind.METADATA_CLUTTER: 3,
        Kind.METADATA_VANISH: 2,
        Kind.METADATA_ROT: 5,
        Kind.METADATA_LOST_END: 6,
        Kind.QUORUM_CUT: 7,
        Kind.QUORUM_ONE_WAY: 6,
        Kind.CONTROLLER_ISOLATED: 6,
        Kind.LEADERS_CUT_OFF: 5,
        Kind.LATE_FOLLOWER: 5,
        Kind.LATE_REGISTRATION: 3,
        Kind.SPLIT: 7,
        Kind.QUORUM_RESET: 5,
        Kind.QUORUM_SLOW_LINK: 3,
        Kind.CLOCK_DRIFT: 3,
        Kind.VOTERS: 7,
        Kind.METADATA_REPLACED: 5,
        Kind.METADATA_STANDALONE: 4,
        Kind.VOTERS_CUT_OFF: 4,
    }
)
#: Relative frequency of additional kinds, which need a majority besides two controllers.
LARGE_QUORUM_WEIGHTS: Final[Mapping[Kind, int]] = MappingProxyType(
    {Kind.METADATA_HANG_OF_FOLLOWER: 6}
)
#: Relative frequency of kinds that no promise covers.
UNLIMITED_WEIGHTS: Final[Mapping[Kind, int]] = MappingProxyType({Kind.METADATA_LOST: 8})
#: Kinds after which a broker may have lost records, or cannot prove that it has not.
UNCLEAN: Final = frozenset(
    {
        Kind.KILL,
        Kind.POWER_CUT,
        Kind.EIO,
        Kind.EIO_ONCE,
        Kind.WRITEBACK,
        Kind.UNREPORTED_EIO,
        Kind.LOST_TAIL,
        Kind.HANG,
        Kind.VANISH,
        Kind.WIPE,
        Kind.REMOVED,
        Kind.ALL_STOPPED,
        Kind.LAST_STANDING,
        Kind.SWAPPED,
        Kind.MOVE_HANG,
        Kind.ROT,
        Kind.ROT_BESIDE,
        Kind.LOST_END,
        Kind.REPLICA_REMOVED,
        Kind.UNREGISTER,
        Kind.UNCLEAN_ELECTION,
        Kind.CANCEL_UNCLEAN,
    }
)
OF_A_DIR: Final = frozenset(
    {
        Kind.EIO,
        Kind.EIO_ONCE,
        Kind.WRITEBACK,
        Kind.UNREPORTED_EIO,
        Kind.LOST_TAIL,
        Kind.HANG,
        Kind.SLOW,
        Kind.FULL,
        Kind.CLUTTER,
        Kind.VANISH,
        Kind.WIPE,
        Kind.MOVE_HANG,
        Kind.ROT,
        Kind.ROT_BESIDE,
        Kind.LOST_END,
        Kind.REPLICA_REMOVED,
        Kind.REMAINS_REMOVED,
        Kind.CORDON,
        Kind.DRAIN,
        Kind.REATTACH,
    }
)
#: Kinds that strike the controller, or one of several.
OF_THE_CONTROLLER: Final = frozenset(
    {
        Kind.CONTROLLER_KILL,
        Kind.CONTROLLER_POWER_CUT,
        Kind.CONTROLLER_STOP,
        Kind.CONTROLLER_STAND_STILL,
        Kind.CONTROLLER_LATE_LOOP,
        Kind.METADATA_EIO,
        Kind.METADATA_EIO_ONCE,
        Kind.METADATA_WRITEBACK,
        Kind.METADATA_LOST_TAIL,
        Kind.METADATA_HANG,
        Kind.METADATA_HANG_OF_FOLLOWER,
        Kind.METADATA_SLOW,
        Kind.METADATA_FULL,
        Kind.METADATA_CLUTTER,
        Kind.METADATA_VANISH,
        Kind.METADATA_ROT,
        Kind.METADATA_LOST_END,
        Kind.QUORUM_CUT,
        Kind.QUORUM_ONE_WAY,
        Kind.CONTROLLER_ISOLATED,
        Kind.LEADERS_CUT_OFF,
        Kind.LATE_FOLLOWER,
        Kind.LATE_REGISTRATION,
        Kind.SPLIT,
        Kind.QUORUM_RESET,
        Kind.QUORUM_SLOW_LINK,
        Kind.METADATA_REPLACED,
        Kind.METADATA_STANDALONE,
        Kind.VOTERS_CUT_OFF,
        Kind.METADATA_LOST,
    }
)
OF_THE_VOTERS: Final = frozenset(
    {Kind.VOTERS, Kind.METADATA_REPLACED, Kind.METADATA_STANDALONE, Kind.VOTERS_CUT_OFF}
)
# Kinds that affect one broker, which ``broker`` names.
OF_ALL_BROKERS: Final = frozenset(
    {Kind.ALL_STOPPED, Kind.LAST_STANDING, Kind.UNCLEAN_ELECTION, Kind.CANCEL_UNCLEAN}
)
OF_THE_CLUSTER: Final = frozenset(
    {
        Kind.CONFIG,
        Kind.REASSIGN,
        Kind.ELECT,
        Kind.DOWNGRADE,
        Kind.LOSSY_DOWNGRADE,
        Kind.SETTINGS,
        Kind.COORDINATED,
        *OF_ALL_BROKERS,
    }
)
#: Kinds of :data:`OF_THE_CLUSTER` with a broker that is struck most.
_OF_ONE_BROKER: Final = frozenset({Kind.LAST_STANDING, Kind.UNCLEAN_ELECTION, Kind.CANCEL_UNCLEAN})
OF_A_LINK: Final = frozenset(
    {Kind.PARTITION, Kind.ONE_WAY, Kind.RESET, Kind.HALF_OPEN, Kind.SLOW_LINK}
)

_LONGEST_MS: Final = 6_000
#: Network partitions, which may last longer than other faults.
_CUTS: Final = frozenset(
    {
        Kind.PARTITION,
        Kind.ONE_WAY,
        Kind.QUORUM_CUT,
        Kind.QUORUM_ONE_WAY,
        Kind.CONTROLLER_ISOLATED,
        Kind.SPLIT,
    }
)
#: Half of all faults are shorter than this: overlapping and successive faults find the most.
_SHORT_MS: Final = 600
#: Share of the kinds that one schedule draws from.
_SHARES: Final = (0.15, 0.35, 0.7)
#: Each schedule multiplies the weight of a kind by a factor between ``1 / x`` and ``x``.
_MOST_PREFERRED: Final = 4.0
_CHOICES: Final = 1 << 30
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that begins ``at_ms`` into a run and is healed ``for_ms`` later.

    ``broker`` counts from 1, ``dir`` from 0. ``other`` is the far end of a link, 0 for the
    controller. ``controller`` counts from 1, and 0 is the leader at that time.
    ``choice`` is the seed of all further random choices.
    """

    number: int
    at_ms: int
    kind: Kind
    broker: int
    dir: int
    other: int
    for_ms: int
    choice: int
    controller: int = 0

    @property
    def where(self) -> str:
        if self.kind in OF_THE_CONTROLLER | OF_THE_VOTERS:
            return f" (the {_ORDINALS[self.controller - 1]})" if self.controller else ""
        if self.kind in OF_THE_CLUSTER - _OF_ONE_BROKER:
            return ""
        if self.kind in OF_A_DIR:
            return f" of dir {self.dir} of broker {self.broker}"
        if self.kind in OF_A_LINK:
            far = f"broker {self.other}" if self.other else "the controller"
            return f" between broker {self.broker} and {far}"
        return f" of broker {self.broker}"

    def __str__(self) -> str:
        return f"#{self.number} {self.kind}{self.where} for {self.for_ms / 1000:.3f} s"

    def rng(self) -> random.Random:
        """Return the generator of this fault, which does not depend on other faults."""
        return random.Random(self.choice)


Schedule = tuple[Fault, ...]


class Struck(NamedTuple):
    """A fault from its beginning until its target was back in service."""

    fault: Fault
    began_ms: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of a cluster that faults can strike."""

    brokers: int = 3
    dirs: int = 2
    partitions: int = 4
    controllers: int = 1
    observers: int = 0
    is_mixed: bool = False
    """One node has older software, and the cluster its metadata.version."""
    crowd: int = 0
    """Partitions of a topic without producers."""
    large_configs: int = 0
    """Topics whose configuration is as long as Kafka allows."""

    def weights(self, *, keeps_promise: bool = True) -> Mapping[Kind, int]:
        covered = dict(WEIGHTS if self.controllers == 1 else QUORUM_WEIGHTS)
        if self.controllers >= 5:
            covered |= LARGE_QUORUM_WEIGHTS
        return covered if keeps_promise else {**covered, **UNLIMITED_WEIGHTS}


def draw_shape(rng: random.Random, *, controllers: int = 1) -> Shape:
    """Draw a shape, mostly a small one, so that each part is struck more often."""
    return Shape(
        controllers=controllers,
        brokers=rng.choice((3, 3, 3, 4)),
        dirs=rng.choice((2, 2, 3)),
        partitions=rng.randint(2, 5),
    )


def draw_schedule(
    rng: random.Random,
    shape: Shape,
    *,
    duration_ms: int,
    mean_gap_ms: int = 1_200,
    keeps_promise: bool = True,
    kinds: Collection[Kind] | None = None,
    longest_cut_ms: int = _LONGEST_MS,
) -> Schedule:
    """Draw faults of the first ``duration_ms`` of a run, in order of time.

    Faults come in bursts about a few brokers: overlapping faults of one broker find more than
    separate ones. Each schedule leaves out a random subset of the kinds and draws its own
    weights for the others (swarm testing), so that rare combinations are not drowned by frequent
    kinds.

    :param kinds: the only kinds, instead of a random subset.
    :param longest_cut_ms: limit of the duration of network partitions.
    """
    weights = shape.weights(keeps_promise=keeps_promise)
    share = rng.choice(_SHARES)
    drawn = [kind for kind in weights if rng.random() < share] or list(weights)
    if kinds is not None:
        drawn = [kind for kind in weights if kind in kinds]
    drawn_weights = [weights[kind] * _MOST_PREFERRED ** rng.uniform(-1, 1) for kind in drawn]
    faults: list[Fault] = []
    favourite = rng.randint(1, shape.brokers)
    at_ms = rng.randint(0, mean_gap_ms)
    while at_ms < duration_ms:
        kind = rng.choices(drawn, drawn_weights)[0]
        if rng.random() < 0.15:
            favourite = rng.randint(1, shape.brokers)
        broker = favourite if rng.random() < 0.6 else rng.randint(1, shape.brokers)
        others = [0, *(one for one in range(1, shape.brokers + 1) if one != broker)]
        longest_ms = longest_cut_ms if kind in _CUTS else _LONGEST_MS
        if rng.random() < 0.5:
            longest_ms = _SHORT_MS
        faults.append(
            Fault(
                number=len(faults) + 1,
                at_ms=at_ms,
                kind=kind,
                broker=broker,
                dir=rng.randrange(shape.dirs),
                other=rng.choice(others),
                for_ms=rng.randint(10, longest_ms),
                choice=rng.randrange(_CHOICES),
                controller=_draw_controller(rng, shape),
            )
        )
        at_ms += max(1, round(rng.expovariate(1 / mean_gap_ms)))
    return tuple(faults)


def _draw_controller(rng: random.Random, shape: Shape) -> int:
    """Draw a controller, mostly the leader, whose loss has the largest effect."""
    if shape.controllers == 1 or rng.random() < 0.6:
        return 0
    return rng.randint(1, shape.controllers)


def only(schedule: Schedule, numbers: Sequence[int]) -> Schedule:
    """Return the faults with these numbers."""
    wanted = frozenset(numbers)
    return tuple(fault for fault in schedule if fault.number in wanted)
