"""A simulated quorum of pure machines with faults of network and disks, driven by a seed.

Each step is one event: a tick, a message (late, twice or lost), the end of one write, a crash that
loses unwritten data, a partition, or a change of the voters.
A disk that lost durable entries truncates the log there, and its replica is mute. The other
replicas are still a majority of each voter set in force.
In some worlds one voter has a slow disk: its entries wait to be written while leaders change, and
terms and votes are written before them, as in the driver (raft/replica_work.py).
Some worlds start with static voters, and name them later (KIP-853).
Raft's invariants (Ongaro, figure 3.2) hold after each step, or ``InvariantViolation`` is raised.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.machine.core import RaftCore, Role
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.messages import (
    Append,
    Entry,
    EntryKind,
    HardState,
    Message,
    ReadEntries,
    ReadSnapshot,
    Ready,
    SnapshotId,
    SnapshotSlice,
    TermStart,
    node,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

NO_OP = b"no-op"
ELECTION_TICKS = 8
#: Probability that a slow disk ends a write before the next work of its machine.
_SLOW_WRITE_ENDS = 0.02
SLICE_BYTES = 7
#: Entries before a snapshot that stay on the disks of a world. Most worlds keep none, so that
#: snapshots are sent often.
_RETAINED = (0, 0, 0, 5)
#: Ticks without faults within which a leader is elected from any state.
TICKS_TO_A_LEADER = 25 * ELECTION_TICKS


class InvariantViolation(AssertionError):
    pass


def require(holds: bool, invariant: str, *what: object) -> None:
    if not holds:
        raise InvariantViolation(f"{invariant}: {what}")


@dataclass
class Disk:
    """The state that a crash leaves."""

    voters: VoterSet
    hard_state: HardState = field(default_factory=HardState)
    snapshot: SnapshotId = NOTHING
    #: The state after the snapshot: a hash of all applied entries.
    state: int = 0
    #: A lower bound of the committed offset, as the store writes it.
    committed: int = -1
    #: Terms of the log that the snapshot replaces.
    terms: tuple[TermStart, ...] = ()
    #: The last entries before the end of the snapshot.
    covered: list[Entry] = field(default_factory=list)
    #: Entries after the snapshot.
    entries: list[Entry] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        """The offset of the first entry on the disk."""
        return self.snapshot.last_offset + 1 - len(self.covered)


class Node:
    """One machine, its disk, and its pending work."""

    def __init__(self, world: World, key: ReplicaKey, voters: VoterSet) -> None:
        self.world = world
        self.key = key
        self.disk = Disk(voters)
        self.core: RaftCore | None = None
        self.start()

    def start(self) -> None:
        disk = self.disk
        self.core = self.world.core_type(
            key=self.key,
            voters=disk.voters,
            hard_state=disk.hard_state,
            first_payload_of_term=NO_OP,
            draw_below=self.world.rng.randrange,
            snapshot=disk.snapshot,
            entries=disk.entries,
            committed_offset=disk.committed,
            terms=disk.terms,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=2,
        )
        self.applied = disk.snapshot.last_offset
        self.state = disk.state
        self.pending: list[Callable[[], None]] = []
        #: Queued writes of entries and slices of a node that has or had a slow disk, in order.
        self.writes: list[Callable[[], None]] = []
        self.parts: list[bytes] = []

    def crash(self) -> None:
        self.core = None
        self.pending.clear()
        self.writes.clear()
        if self.world.may_rot(self):
            self._rot()

    def _rot(self) -> None:
        """Damage a part of the log: the store drops the damaged entry and all later ones."""
        disk, term = self.disk, self.disk.hard_state.term + 1
        del disk.entries[self.world.rot.randrange(len(disk.entries) + 1) :]
        disk.committed = min(disk.committed, disk.snapshot.last_offset + len(disk.entries))
        self.world.rotted += 1
        if not self.world.forgets_a_lost_tail:
            disk.hard_state = HardState(term=term, mute_before_term=term)
            if self.world.keeps_the_term_of_a_lost_tail:
                disk.hard_state = HardState(term=term - 1, mute_before_term=term - 1)

    @property
    def leads(self) -> bool:
        return self.core is not None and self.core.role is Role.LEADER

    def voters_in_force(self) -> VoterSet:
        if self.core is not None:
            return self.core.log.voters
        voters = self.disk.voters
        for entry in self.disk.entries:
            if entry.kind is EntryKind.VOTERS:
                voters = VoterSet.decode(entry.payload)
        return voters

    # --- work ------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Carry out one pending action, and return whether there was one."""
        if self.core is None:
            return False
        if not self.pending:
            self._plan(self.core, self.core.ready())
        if self.pending:
            self.pending.pop(0)()
        elif self.writes and self.world.ends_a_write(self):
            self.writes.pop(0)()
        else:
            return False
        return True

    def work_all(self) -> None:
        while self.work():
            pass

    def _plan(self, core: RaftCore, ready: Ready) -> None:
        send = [lambda: self.world.send(ready.messages)] if ready.messages else []
        writes = self.writes if self.world.slow is self or self.writes else self.pending
        if self.world.sends_before_it_persists:
            self.pending += send
        if ready.hard_state is not None:
            hard_state = ready.hard_state
            self.pending.append(lambda: self._write_hard_state(core, hard_state))
        if not self.world.sends_before_it_persists:
            self.pending += send
        if ready.entries:
            if self.world.acknowledges_before_it_persists:
                core.entries_persisted(ready.entries[-1], ready.generation)
                self.world.send(core.ready().messages)
            writes.append(lambda: self._write_entries(core, ready.entries, ready.generation))
        for part in ready.slices:
            writes.append(lambda part=part: self._write_slice(core, part))
        for read in ready.reads:
            self.pending.append(lambda read=read: self._read(core, read))
        if ready.committed_offset > self.applied:
            self.pending.append(lambda: self._apply(ready.committed_offset))

    def _write_hard_state(self, core: RaftCore, hard_state: HardState) -> None:
        self.disk.hard_state = hard_state
        self.disk.committed = max(self.disk.committed, core.applicable_offset)
        core.hard_state_persisted(hard_state)

    def _write_entries(self, core: RaftCore, entries: tuple[Entry, ...], generation: int) -> None:
        disk = self.disk
        kept = entries[0].offset - disk.snapshot.last_offset - 1
        require(kept <= len(disk.entries), "no gaps", self.key, entries[0], disk.snapshot)
        require(entries[0].offset > self.applied, "applied is not cut off", self.key, entries[0])
        del disk.entries[max(0, kept) :]
        disk.entries += entries
        disk.committed = max(disk.committed, core.applicable_offset)
        self.world.note_entries(self.disk, len(entries))
        core.entries_persisted(entries[-1], generation)
        self._check_durable(core.log)

    def _check_durable(self, log: EntryLog) -> None:
        """Check that entries which the log considers durable are on the disk."""
        last, first = log.durable_offset, self.disk.snapshot.last_offset + 1
        if last >= first:
            on_disk = self.disk.entries[last - first : last - first + 1]
            require(bool(on_disk) and log.holds(last, on_disk[0].term), "durable", last, on_disk)

    def _write_slice(self, core: RaftCore, part: SnapshotSlice) -> None:
        if part.position == 0:
            self.parts = []
        self.parts.append(part.data)
        if not part.is_last:
            core.slice_persisted(part)
            return
        voters, _, state = b"".join(self.parts).rpartition(b" ")
        require(part.snapshot.last_offset > self.applied, "an older state is installed", self.key)
        self.disk.snapshot, self.disk.covered, self.disk.entries = part.snapshot, [], []
        self.disk.state, self.disk.voters = int(state), VoterSet.decode(voters)
        self.applied, self.state = part.snapshot.last_offset, self.disk.state
        self.world.note_state(self.applied, self.state)
        core.snapshot_installed(part.snapshot, self.disk.voters)
        self.disk.terms = core.log.terms

    def _read(self, core: RaftCore, read: ReadEntries | ReadSnapshot) -> None:
        if isinstance(read, ReadEntries):
            held = [*self.disk.covered, *self.disk.entries]
            at = read.from_offset - self.disk.start_offset
            core.entries_read(read, held[at : at + 5] if at >= 0 else [])
        elif read.snapshot != self.disk.snapshot:
            core.slice_read(read, None, is_last=False)
        else:
            data = self.disk.voters.encode() + b" %d" % self.disk.state
            end = read.position + SLICE_BYTES * 20
            core.slice_read(read, data[read.position : end], is_last=end >= len(data))

    def _apply(self, offset: int) -> None:
        first = self.disk.snapshot.last_offset + 1
        for at in range(self.applied + 1, offset + 1):
            entry = self.disk.entries[at - first]
            self.applied, self.state = at, hash((self.state, at, entry.term, entry.payload))
            self.world.note_applied(entry, 0 if self.core is None else self.core.term)
            self.world.note_state(at, self.state)

    def make_snapshot(self) -> None:
        """Make a snapshot of the applied entries, and keep only the last entries before it."""
        disk, core = self.disk, self.core
        if core is None or self.applied <= disk.snapshot.last_offset or self.pending or self.writes:
            return
        count = self.applied - disk.snapshot.last_offset
        disk.voters = core.log.voters_at(self.applied)
        disk.snapshot = SnapshotId(self.applied, disk.entries[count - 1].term)
        disk.state = self.state
        covered = [*disk.covered, *disk.entries[:count]]
        disk.covered = covered[max(0, len(covered) - self.world.retained) :]
        del disk.entries[:count]
        core.compact(disk.snapshot, disk.start_offset)
        disk.terms = core.log.terms


class World:
    """A quorum of voters and observers with a seed."""

    sends_before_it_persists = False
    acknowledges_before_it_persists = False
    forgets_a_lost_tail = False
    keeps_the_term_of_a_lost_tail = False

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        observers: int = 1,
        core_type: type[RaftCore] = RaftCore,
    ) -> None:
        self.rng = random.Random(seed)
        self.rot = random.Random(-1 - seed)
        self.retained = random.Random(f"retention {seed}").choice(_RETAINED)
        self.rotted = 0
        #: Losing tails often would hide other errors in them.
        self._rots = seed % 4 < 2
        self.core_type = core_type
        self.network: list[Message] = []
        #: The partition of each node; nodes in different partitions are isolated from each other.
        self.islands: dict[BrokerId, int] = {}
        self.leaders: dict[int, ReplicaKey] = {}
        self.entries: dict[tuple[int, int], tuple[int | None, Entry]] = {}
        self.applied: dict[int, Entry] = {}
        #: The term of the first node that applied an entry, which is its commit term or later.
        self.applied_in: dict[int, int] = {}
        self.states: dict[int, int] = {}
        self.proposed = 0
        #: Probability that all work of a machine is done before the next event.
        self.diligence = self.rng.choice([0.3, 0.6, 0.95])
        self.steps = 0
        #: The voter whose disk is slow at present.
        self.slow: Node | None = None
        keys = [_named(i) for i in range(1, voters + observers + 1)]
        named = VoterSet.of_keys(keys[:voters])
        static = VoterSet.of_keys(node(key.node_id) for key in named)
        first = static if self.rng.random() < 0.4 else named
        self.nodes = {key.node_id: Node(self, key, first) for key in keys}

    def ends_a_write(self, at: Node) -> bool:
        """Draw whether the oldest queued write of ``at``, which has no other work, ends now."""
        return at is not self.slow or self.rng.random() < _SLOW_WRITE_ENDS

    def may_rot(self, at: Node) -> bool:
        """Return whether a majority of the other voters remains in each voter set in force."""
        if not self._rots or self.rot.random() > 0.1 or not at.disk.hard_state.term:
            return False
        sets = [one.voters_in_force() for one in self.nodes.values()]
        mute = {one.key for one in self.nodes.values() if one.disk.hard_state.mute_before_term}
        mute.add(at.key)
        return all(
            voters.is_majority(set(voters) - set(map(voters.known_as, mute))) for voters in sets
        )

    # --- invariants ------------------------------------------------------------------------------

    def note_entries(self, disk: Disk, count: int) -> None:
        """Log matching: equal offset and term mean equal entries, and equal terms before them."""
        for at in range(len(disk.entries) - count, len(disk.entries)):
            entry = disk.entries[at]
            before = disk.entries[at - 1].term if at else disk.snapshot.term
            seen = self.entries.setdefault((entry.offset, entry.term), (before, entry))
            require(seen == (before, entry), "log matching", seen, before, entry)

    def note_applied(self, entry: Entry, term: int) -> None:
        """State machine safety: all nodes apply the same entry at an offset."""
        self.applied_in.setdefault(entry.offset, term)
        seen = self.applied.setdefault(entry.offset, entry)
        require(seen == entry, "state machine safety", seen, entry)

    def note_state(self, offset: int, state: int) -> None:
        require(self.states.setdefault(offset, state) == state, "one state", offset)

    def check_leader(self, at: Node) -> None:
        """Election safety and leader completeness, once per leader and term."""
        core = at.core
        if core is None or core.role is not Role.LEADER or self.leaders.get(core.term) == at.key:
            return
        other = self.leaders.setdefault(core.term, at.key)
        require(other == at.key, "election safety", core.term, other, at.key)
        for offset, entry in self.applied.items():
            # A leader elected late in an earlier term need not have the entry.
            if offset > core.log.base.last_offset and core.term > self.applied_in[offset]:
                require(core.log.holds(offset, entry.term), "leader completeness", core, entry)

    # --- network ---------------------------------------------------------------------------------

    def send(self, messages: Iterable[Message]) -> None:
        self.network += messages

    def deliver(self, message: Message) -> None:
        """Deliver a message as the daemons do: the receiver names both nodes as its voters do."""
        receiver, sender = self.nodes[message.to.node_id], self.nodes[message.sender.node_id]
        apart = self._island(receiver) != self._island(sender)
        if receiver.core is None or apart:
            return
        voters = receiver.core.log.voters
        said_by = voters.known_as(sender.key)
        if not voters.is_static or said_by in voters or message.to.directory_id is not None:
            to = voters.known_as(message.to)
            receiver.core.step(dataclasses.replace(message, sender=said_by, to=to))
            self.check_leader(receiver)

    def _island(self, at: Node) -> int:
        return self.islands.get(at.key.node_id, 0)

    # --- faults ----------------------------------------------------------------------------------

    def run_with_faults(self, steps: int) -> None:
        rng = self.rng
        nodes = list(self.nodes.values())
        for _ in range(steps):
            self.steps += 1
            dice = rng.random()
            at = rng.choice(nodes)
            if dice < 0.58:
                at = self._deliver_one() or at
            elif dice < 0.72:
                for ticking in nodes if rng.random() < 0.4 else [at]:
                    if ticking.core is not None:
                        ticking.core.tick()
                        self.check_leader(ticking)
            elif dice < 0.82:
                self._propose(at)
            elif dice < 0.835:
                leader = self.leader()
                self._restart_some(leader if leader and rng.random() < 0.4 else at)
            elif dice < 0.842:
                self._partition()
            elif dice < 0.88:
                self._disturb(at)
            if rng.random() < self.diligence:
                at.work_all()
            else:
                at.work()
            self.check_leader(at)
            del self.network[:-100]

    def _deliver_one(self) -> Node | None:
        if not self.network:
            return None
        index = self.rng.randrange(len(self.network))
        if self.rng.random() < 0.6:
            index = 0
        message = self.network.pop(index)
        luck = self.rng.random()
        if luck < 0.05:
            return None
        if luck < 0.1:
            self.network.append(message)
        self.deliver(message)
        return self.nodes[message.to.node_id]

    def _propose(self, at: Node) -> None:
        leader = next((n for n in self.nodes.values() if n.leads), at)
        chosen = at if at.leads else leader
        if chosen.core is not None and chosen.leads:
            self.proposed += 1
            try:
                chosen.core.propose(b"%d" % self.proposed)
            except OperatingError:
                return

    def _restart_some(self, at: Node) -> None:
        if at.core is None:
            at.start()
        else:
            at.crash()
            if self.rng.random() < 0.85:
                at.start()

    def _partition(self) -> None:
        if self.islands and self.rng.random() < 0.7:
            self.islands.clear()
        else:
            self.islands = {key: self.rng.randrange(2) for key in self.nodes}

    def _disturb(self, at: Node) -> None:
        core = at.core
        if core is None:
            return
        dice = self.rng.random()
        if dice < 0.25:
            at.make_snapshot()
        elif dice < 0.5:
            core.log.release(min(self.rng.randrange(core.last_offset + 2), len(self.applied)))
        elif dice < 0.6:
            core.note_leader_gone()
        elif core.role is Role.LEADER:
            try:
                if dice < 0.7:
                    core.resign()
                else:
                    self._change_voters(core)
            except (OperatingError, IndexError):
                return

    def _change_voters(self, core: RaftCore) -> None:
        voters = core.log.voters
        if voters.is_static and self.rng.random() < 0.5:
            core.change_voters(VoterSet.of_keys(_named(key.node_id) for key in voters))
            return
        node_id = self.rng.choice(list(self.nodes))
        keys = set(voters) ^ {node(node_id) if voters.is_static else _named(node_id)}
        if keys:
            core.change_voters(VoterSet.of_keys(sorted(keys)))

    def run_short_leaderships(self, rounds: int, *, is_lazy: bool) -> None:
        """Run leaders of few messages: in each round a bare majority elects a candidate."""
        rng = self.rng
        diligence = 0.5 if is_lazy else 1.0
        for _ in range(rounds):
            keys = rng.sample(list(self.nodes), len(self.nodes) // 2 + 1)
            self.islands = {key: int(key not in keys) for key in self.nodes}
            chosen = [self.nodes[key] for key in keys]
            for at in chosen:
                if at.core is None or rng.random() < 0.5:
                    at.crash()
                    at.start()
            for at in chosen[: 1 + is_lazy]:
                if at.core is not None and not at.leads:
                    at.core.campaign()
            for left in range(rng.randrange(8, 40), 0, -1):
                for at in chosen:
                    if rng.random() < diligence:
                        at.work()
                        self.check_leader(at)
                if left % 8 == 0:
                    self._propose(chosen[0])
                if self.network:
                    self.deliver(self.network.pop(0))
            self.network.clear()

    def run_past_a_slow_disk(self, rounds: int) -> None:
        """Run leaders of few messages, whose entries reach hardly any node but a slow voter.

        In each round a bare majority of the other nodes elects a leader.
        """
        rng = self.rng
        others = list(self.nodes)
        slow = self.slow = self.nodes[others.pop(rng.randrange(len(others) - 1))]
        for _ in range(rounds):
            keys = [slow.key.node_id, *rng.sample(others, len(self.nodes) // 2)]
            self.islands = {key: int(key not in keys) for key in self.nodes}
            chosen = [self.nodes[key] for key in keys[1:]]
            for at in chosen:
                if at.core is None or at.leads or rng.random() < 0.7:
                    at.crash()
                    at.start()
                else:
                    at.core.note_leader_gone()
            if chosen[0].core is not None:
                chosen[0].core.campaign()
            for _ in range(rng.randrange(10, 40)):
                for at in (slow, *chosen):
                    at.work()
                    self.check_leader(at)
                if self.network:
                    message = self.network.pop(0)
                    has_entries = isinstance(message, Append) and bool(message.entries)
                    to_slow = message.to.node_id == slow.key.node_id
                    if to_slow or not has_entries or rng.random() < 0.3:
                        self.deliver(message)
            self.network.clear()

    # --- no faults -------------------------------------------------------------------------------

    def run_without_faults(self, ticks: int, cut_off: BrokerId | None = None) -> None:
        """Deliver all messages in order and complete all writes, except for ``cut_off``."""
        self.islands = {} if cut_off is None else {cut_off: 1}
        self.slow = None
        for _ in range(ticks):
            for at in self.nodes.values():
                if at.core is not None:
                    at.core.tick()
                    if at.core.leader is None:
                        # The daemon asks others for the voters in this case (quorum_search.py).
                        at.core.ask_for_log(one.key for one in self.nodes.values())
            self.settle()

    def settle(self) -> None:
        for _ in range(200):
            for at in self.nodes.values():
                at.work_all()
                self.check_leader(at)
            if not self.network:
                return
            arriving, self.network = self.network, []
            for message in arriving:
                self.deliver(message)
        raise InvariantViolation("liveness: they never stop talking")

    def leader(self) -> Node | None:
        """Return the leader of the latest term."""
        leading = [at for at in self.nodes.values() if at.leads]
        return max(leading, key=lambda at: at.core.term if at.core else 0, default=None)

    def check_liveness(self) -> None:
        """Start all nodes: a leader is elected in bounded time, and all apply its proposal."""
        for at in self.nodes.values():
            if at.core is None:
                at.start()
        self.run_without_faults(TICKS_TO_A_LEADER)
        leader = self.leader()
        require(leader is not None, "liveness: there is no leader", self.nodes)
        assert leader is not None and leader.core is not None
        entry = leader.core.propose(b"the last")
        self.run_without_faults(2 * ELECTION_TICKS)
        voters = leader.core.log.voters
        for at in self.nodes.values():
            # A removed voter receives the log like any observer. A static quorum serves only its
            # own voters, and nodes that still know the leader as a voter. Real quorums are named
            # before a change.
            assert at.core is not None
            if voters.is_static and voters.known_as(at.key) not in voters:
                continue
            known_voters = at.core.log.voters
            if not known_voters.is_static or known_voters.known_as(leader.key) in known_voters:
                require(at.applied >= entry.offset, "liveness: not applied", at.key, at.core)
        self._check_one_cut_off(leader)

    def _check_one_cut_off(self, leader: Node) -> None:
        """Check that an isolated voter that returns does not depose the leader."""
        assert leader.core is not None
        others = [key.node_id for key in leader.core.log.voters if key != leader.core.key]
        if len(others) < 2:
            return
        term = leader.core.term
        self.run_without_faults(4 * ELECTION_TICKS, cut_off=self.rng.choice(others))
        self.run_without_faults(2 * ELECTION_TICKS)
        require(leader.leads and leader.core.term == term, "a healthy leader stays", leader.core)


def _named(node_id: int) -> ReplicaKey:
    return ReplicaKey(BrokerId(node_id), DirectoryId(bytes(15) + bytes([node_id])))


def run(seed: int, *, voters: int, steps: int, core_type: type[RaftCore] = RaftCore) -> World:
    """Run one seed, and return its world.

    :raises InvariantViolation: it names the violated invariant.
    """
    world = World(seed, voters=voters, observers=1 + seed % 2, core_type=core_type)
    world.run_without_faults(3 * ELECTION_TICKS)
    if seed % 8 == 6:
        world.run_past_a_slow_disk(steps // 25)
    elif seed % 3:
        world.run_short_leaderships(steps // 25, is_lazy=seed % 3 == 1)
    else:
        world.run_with_faults(steps)
    world.check_liveness()
    return world
