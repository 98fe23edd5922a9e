"""A quorum of pure Raft machines that executes lines of text and prints every sent message.

Nodes 1, 2, ... are voters; the ``observers=`` nodes after them are observers. Disk writes end
immediately. Messages arrive in order at the command ``deliver``. Election timeouts are not random:
node n waits n ticks longer than the minimum of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kraftjbod.core.errors import OperatingError
from kraftjbod.raft.log.damaged_end import made_mute
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    Message,
    PreVote,
    PreVoteReply,
    ReadEntries,
    ReadSnapshot,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
    Vote,
    VoteReply,
    node,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

SLICES = (b"first half,", b"second half")


class Replica:
    """A Raft machine and the state that it persisted."""

    def __init__(self, key: ReplicaKey, voters: VoterSet) -> None:
        self.key = key
        self.voters = voters
        self.hard_state = HardState()
        self.snapshot = NOTHING
        self.entries: list[Entry] = []
        self.start()

    def start(self) -> None:
        self.core = RaftCore(
            key=self.key,
            voters=self.voters,
            hard_state=self.hard_state,
            first_payload_of_term=b"no-op",
            draw_below=lambda bound: min(bound - 1, self.key.node_id),
            snapshot=self.snapshot,
            entries=self.entries,
        )

    def work(self) -> Iterator[Message]:
        """Carry out the machine's reads and writes, and yield the messages that it sends."""
        while ready := self.core.ready():
            if ready.hard_state is not None:
                self.hard_state = ready.hard_state
                self.core.hard_state_persisted(ready.hard_state)
            yield from ready.messages
            if ready.entries:
                kept = ready.entries[0].offset - self.snapshot.last_offset - 1
                self.entries[kept:] = ready.entries
                self.core.entries_persisted(ready.entries[-1], ready.generation)
            for part in ready.slices:
                self._take(part)
            for read in ready.reads:
                self._read(read)

    def _take(self, part: SnapshotSlice) -> None:
        if not part.is_last:
            self.core.slice_persisted(part)
            return
        self.snapshot, self.entries = part.snapshot, []
        self.core.snapshot_installed(part.snapshot, self.voters)

    def _read(self, read: ReadEntries | ReadSnapshot) -> None:
        if isinstance(read, ReadEntries):
            at = read.from_offset - self.snapshot.last_offset - 1
            self.core.entries_read(read, self.entries[at:])
        else:
            last = read.position > 0
            self.core.slice_read(read, SLICES[last], is_last=last)


class Quorum:
    def __init__(self) -> None:
        self.replicas: dict[int, Replica] = {}
        self.network: list[Message] = []
        self.cut: set[int] = set()

    def run(self, line: str) -> Iterator[str]:
        verb, *words = line.split()
        command: Callable[..., Iterator[str] | None] = getattr(self, f"_do_{verb}")
        try:
            yield from command(*words) or ()
        except OperatingError as e:
            yield f"error {e.code.name}: {e.message}"
        for number, replica in self.replicas.items():
            for message in replica.work():
                if not {number, int(message.to.node_id)} & self.cut:
                    self.network.append(message)
                    yield self._format(message)

    def state_lines(self) -> Iterator[str]:
        for number, replica in self.replicas.items():
            core = replica.core
            leader = core.leader.node_id if core.leader else "none"
            log = " ".join(f"{e.offset}:{e.term}" for e in replica.entries)
            yield (
                f"{number} {'mute ' * core.is_mute}{core.role.value} "
                f"term {core.term} leader {leader} "
                f"committed {core.committed_offset} voters {_keys(core.log.voters)} "
                f"after {replica.snapshot.last_offset}: {log or 'nothing'}"
            )

    # --- commands --------------------------------------------------------------------------------

    def _do_quorum(self, voters: str, observers: str = "observers=0") -> None:
        count = int(voters.partition("=")[2])
        first = VoterSet.of_keys(map(node, range(1, count + 1)))
        total = count + int(observers.partition("=")[2])
        self.replicas = {i: Replica(node(i), first) for i in range(1, total + 1)}

    def _do_tick(self, numbers: str, count: str = "1") -> Iterator[str]:
        for number in map(int, numbers.split(",")):
            for _ in range(int(count)):
                self.replicas[number].core.tick()
        return iter(())

    def _do_deliver(self, how: str = "all") -> Iterator[str]:
        """Deliver messages until no node sends any more. With "once", only those in flight now."""
        while self.network:
            arriving, self.network = self.network, []
            for message in arriving:
                if int(message.to.node_id) not in self.cut:
                    self.replicas[int(message.to.node_id)].core.step(message)
            if how == "once":
                return
            for number, replica in self.replicas.items():
                for message in replica.work():
                    if not {number, int(message.to.node_id)} & self.cut:
                        self.network.append(message)
                        yield self._format(message)

    def _do_lose(self) -> None:
        """Drop the messages in flight."""
        self.network.clear()

    def _do_cut(self, number: str) -> None:
        self.cut.add(int(number))

    def _do_heal(self) -> None:
        self.cut.clear()

    def _do_rot(self, number: str, offset: str) -> None:
        """Restart the node without its entries from ``offset`` on, as after damage to its log.

        It neither votes nor stands for election until it has the entries again (damaged_end.py).
        """
        replica = self.replicas[int(number)]
        del replica.entries[int(offset) - replica.snapshot.last_offset - 1 :]
        replica.hard_state = made_mute(replica.hard_state)
        replica.start()

    def _do_restart(self, number: str) -> None:
        self.replicas[int(number)].start()

    def _do_propose(self, number: str, *payloads: str) -> None:
        for payload in payloads:
            self.replicas[int(number)].core.propose(payload.encode())

    def _do_voters(self, number: str, keys: str) -> None:
        voters = VoterSet.of_keys(node(int(key)) for key in keys.split(","))
        self.replicas[int(number)].core.change_voters(voters)

    def _do_resign(self, number: str) -> None:
        self.replicas[int(number)].core.resign()

    def _do_leader_gone(self, number: str) -> None:
        self.replicas[int(number)].core.note_leader_gone()

    def _do_snapshot(self, number: str, offset: str) -> None:
        replica, last = self.replicas[int(number)], int(offset)
        count = last - replica.snapshot.last_offset
        replica.snapshot = SnapshotId(last, replica.entries[count - 1].term)
        del replica.entries[:count]
        replica.core.compact(replica.snapshot, last + 1)

    # --- output ----------------------------------------------------------------------------------

    @staticmethod
    def _format(message: Message) -> str:
        head = f"{message.sender}->{message.to} {type(message).__name__} term {message.term}"
        match message:
            case PreVote() | Vote():
                transfer = isinstance(message, Vote) and message.is_transfer
                last = f" last {message.last_offset}:{message.last_term}"
                return head + last + (" by transfer" if transfer else "")
            case PreVoteReply() | VoteReply():
                return f"{head} {'granted' if message.granted else 'refused'}"
            case Append():
                entries = " ".join(map(_format_entry, message.entries)) or "nothing"
                after = f"{message.previous_offset}:{message.previous_term}"
                return f"{head} after {after} {entries} committed {message.committed_offset}"
            case AppendReply():
                return f"{head} durable {message.durable_offset}"
            case AppendRejected():
                hint = f"{message.hint.last_offset}:{message.hint.term}"
                return f"{head} not {message.previous_offset}, maybe {hint}"
            case SnapshotSlice():
                end = " last" if message.is_last else ""
                return f"{head} of {message.snapshot.last_offset} at {message.position}{end}"
            case SnapshotReply():
                return f"{head} of {message.snapshot.last_offset} next {message.next_position}"
            case _:
                return head


def _format_entry(entry: Entry) -> str:
    if entry.kind is EntryKind.VOTERS:
        return f"{entry.offset}:{entry.term}(voters {_keys(VoterSet.decode(entry.payload))})"
    return f"{entry.offset}:{entry.term}({entry.payload.decode()})"


def _keys(voters: VoterSet) -> str:
    return ",".join(map(str, voters))
