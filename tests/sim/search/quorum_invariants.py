"""``QuorumInvariants``: invariants of several controllers, checked every few milliseconds.

* An entry that one controller has committed, all controllers commit at the same offset, and every
  later leader holds it.
* A majority held the entry durably when it was committed, and each member of the majority holds it
  after a restart.
* A leader commits only entries of its term by counting: an older entry that a majority holds may
  still be replaced.
* A controller counts no entry as durable beyond the end of its log on disk.
* A term has one leader, and a voter gives one vote in it.
* A controller acts (decides, answers heartbeats) for at most one election time-out of the
  controller's clock after a later term has a leader. Raft promises one leader per term, not one
  leader at a time: a voter whose connection to its leader was closed votes at once (ADR 98). The
  later leader holds all entries that a controller of an earlier term commits in that time.
* A controller that is cut off from all other voters has no term that no other controller had: that
  would cost the others their leader later. An observer that reaches both sides may send it a term.
* Every decision that was answered to a client is committed.
* A controller that lost the end of its log neither votes nor leads until it holds the end again,
  and it starts mute if its files prove the loss.
* A controller follows one metadata log as long as its disk is not replaced.
* A snapshot is the state that its committed entries replay to, on every controller.

Entries that left a controller's cache between two checks are read from the controller's disk.

Once a majority of the voters' disks is lost, the committed entries are unknown, and the invariants
about them are not checked any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.core.ids import Uuid
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.metadata.records import Record
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.messages import Entry, EntryKind, SnapshotId
from kraftjbod.raft.machine.voter_set import ReplicaKey
from tests.sim.search.cluster_view import ClusterView

_INTERVAL_S: Final = 0.005
#: A request in flight when a controller was cut off may raise the term once.
_MOST_RISE: Final = 1
#: Factor by which a drifting clock may be slower than the world's.
_SLOWEST_CLOCK: Final = 1.25


class QuorumInvariants:
    """:param found: called with one sentence for each violation."""

    def __init__(self, view: ClusterView, *, found: Callable[[str], None]) -> None:
        self._view = view
        self._report = found
        self._said: set[str] = set()
        #: By offset, the entries that any controller has committed.
        self.committed: dict[int, Entry] = {}
        #: By offset, the term of the controller that was first seen with the entry committed. The
        #: entry was committed in this term or an earlier one.
        self._seen_in: dict[int, int] = {}
        self._leaders: dict[int, str] = {}
        #: By term, when its leader was first seen.
        self._led_from_ms: dict[int, int] = {}
        self._votes: dict[tuple[str, int], ReplicaKey] = {}
        #: The newest state machine of each controller, also after its end.
        self._cores: dict[str, RaftCore] = {}
        #: State machines from before their disk was emptied or lost the end of the log. Their
        #: earlier acknowledgements count.
        self._emptied: list[RaftCore] = []
        #: By controller, the offset up to which its committed entries were compared.
        self._compared: dict[str, int] = {}
        #: By last offset, the records of each snapshot and the controllers that have it.
        self._snapshots: dict[int, tuple[str, list[Record]]] = {}
        #: By controller, the newest snapshot that was compared.
        self._compared_snapshots: dict[str, SnapshotId] = {}
        #: By controller, the metadata log that it follows.
        self._log_ids: dict[str, Uuid] = {}
        #: Controllers that are cut off from all others, with their term at that time.
        self._cut_off: dict[str, int] = {}
        #: Replica keys of voters whose disks are lost.
        self._gone: set[ReplicaKey] = set()
        #: Controllers that lost the end of their log and have not opened it since.
        self._cut_short: set[str] = set()
        #: The last lost entry of controllers whose files prove that loss.
        self._proven_ends: dict[str, int] = {}
        self.is_lost = False
        """Whether the remaining voters are less than a majority."""

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_S)

    def look(self) -> None:
        self._follow_one_log()
        if self.is_lost:
            return
        running = [(n, d, d._core) for n, d in self._view.drivers() if d._core is not None]
        for name, _, core in running:
            if core is not self._cores.get(name):
                self._begins(name, core)
        for name, driver, core in running:
            self._vote(name, core)
            self._leads(name, core)
            self._commits(name, driver)
            self._counts(name, core)
            self._is_stored(name, driver)
            self._take_snapshot(name, driver)
            self._raises_no_term(name, core)
        newest = max(self._leaders, default=0)
        if any(core.term < newest for _, _, core in running):
            self._overlap(newest)

    def cut_off(self, name: str) -> None:
        """Note that the controller receives no messages until :meth:`connected`."""
        core = self._cores.get(name)
        if core is not None:
            self._cut_off[name] = core.term

    def connected(self, name: str) -> None:
        self._cut_off.pop(name, None)

    def loses_end(self, name: str, proven_end: int | None) -> None:
        """Expect a shorter log at its next start.

        Acknowledgements that it sent before still count for the entries that its log held.

        :param proven_end: the offset of the last lost entry, if the files prove its loss.
        """
        if proven_end is not None:
            self._proven_ends[name] = proven_end
        core = self._cores.get(name)
        if core is not None:
            self._cut_short.add(name)
            self._emptied.append(core)

    def forgets_all(self, name: str) -> None:
        """Note that the controller restarts with an empty disk, as another voter."""
        self.look()
        self._log_ids.pop(name, None)
        self._proven_ends.pop(name, None)
        if not self._cores:
            self.is_lost = True  # The machine of a single controller is not observed.
            return
        voters = self._newest().voters
        core = self._cores.pop(name, None)
        self._compared.pop(name, None)
        self._cut_off.pop(name, None)
        if core is not None:
            self._emptied.append(core)
            self._gone.add(core.own_key)
        gone = {voters.known_as(key) for key in self._gone}
        left = [voter for voter in voters if voter not in gone]
        self.is_lost = self.is_lost or not voters.is_majority(left)

    def _found(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._report(sentence)

    def _follow_one_log(self) -> None:
        for name, state in self._view.controller_states():
            if (log_id := state.metadata_log_id) is None:
                continue
            first = self._log_ids.setdefault(name, log_id)
            if first != log_id:
                self._found(f"{name} followed metadata log {first}, and follows {log_id}")
        mistaken = self._view.mistaken_controllers()
        for name, driver in self._view.drivers() if mistaken else ():
            if (core := driver._core) is not None and core.leader in mistaken:
                self._found(f"{name} follows {core.leader}, which has another metadata log")

    # --- each ------------------------------------------------------------------------------------

    def _begins(self, name: str, core: RaftCore) -> None:
        """Note a new process or the first check of it. Applied entries are on its disk."""
        before = self._cores.get(name)
        is_shorter = before is not None and core.log.last_offset < before.applicable_offset
        if before is not None and is_shorter and name not in self._cut_short:
            self._found(
                f"{name} has its log up to {core.log.last_offset} after a start, and had applied "
                f"up to {before.applicable_offset} before"
            )
        proven_end = self._proven_ends.pop(name, -1)
        if core.log.last_offset < proven_end and not core.is_mute:
            self._found(
                f"{name} lost entries up to {proven_end}, which its files prove, and starts with "
                f"{core.log.last_offset} as if it had acknowledged none of them"
            )
        self._cores[name] = core
        self._cut_short.discard(name)
        self._compared.pop(name, None)
        self._cut_off.pop(name, None)
        self._votes = {key: vote for key, vote in self._votes.items() if key[0] != name}

    def _vote(self, name: str, core: RaftCore) -> None:
        state = core.hard_state
        if core.is_mute and (state.voted_for is not None or core.leadership is not None):
            self._found(f"{name} votes in term {state.term}, and may lack what it acknowledged")
        if state.voted_for is None:
            return
        first = self._votes.setdefault((name, state.term), state.voted_for)
        if first != state.voted_for:
            self._found(f"{name} votes in term {state.term} for {first} and {state.voted_for}")

    def _raises_no_term(self, name: str, core: RaftCore) -> None:
        if core.term <= self._cut_off.get(name, core.term) + _MOST_RISE:
            return
        if all(core.term > one.term for other, one in self._cores.items() if other != name):
            self._found(f"{name} raised its term to {core.term} while it was cut off")

    def _leads(self, name: str, core: RaftCore) -> None:
        if core.leadership is None or self._leaders.get(core.term) == name:
            return
        first = self._leaders.setdefault(core.term, name)
        self._led_from_ms.setdefault(core.term, self._view.now_ms)
        if first != name:
            self._found(f"term {core.term} is led by {first} and {name}")
        for offset in range(core.log.base.last_offset + 1, max(self.committed, default=-1) + 1):
            entry = self.committed.get(offset)
            if entry is None or self._seen_in[offset] >= core.term:
                continue  # A paused controller may start to lead an old term.
            if not core.log.holds(offset, entry.term):
                self._found(
                    f"{name} leads term {core.term} without entry {offset} of term {entry.term}, "
                    "which is committed"
                )
                return

    def _overlap(self, newest: int) -> None:
        for acting in self._view.acting_controllers():
            later = (term for term in range(acting.term + 1, newest + 1) if term in self._leaders)
            if (term := next(later, None)) is None:
                continue
            rate = _SLOWEST_CLOCK if acting.has_drifted else 1.0
            limit_ms = acting.election_timeout_ms * rate
            if self._view.now_ms - self._led_from_ms[term] > limit_ms:
                self._found(
                    f"{acting.name} acts as the leader of term {acting.term} more than "
                    f"{limit_ms:.0f} ms after {self._leaders[term]} began to lead term {term}"
                )

    # --- committed entries -----------------------------------------------------------------------

    def _commits(self, name: str, driver: RaftDriver) -> None:
        cache, committed_offset = driver.committed.cache, driver.committed_offset
        offset = self._compared.get(name, -1) + 1
        if offset > committed_offset:
            return
        cached_from = next(
            (at for at in range(offset, committed_offset + 1) if at in cache), committed_offset + 1
        )
        for entry in self._view.stored_entries(name, offset, cached_from - 1):
            self._compare(name, driver.core, entry)
        for at in range(cached_from, committed_offset + 1):
            self._compare(name, driver.core, cache[at])
        self._compared[name] = committed_offset

    def _take_snapshot(self, name: str, driver: RaftDriver) -> None:
        """Compare a new snapshot with that of another controller, or keep it for the end."""
        snapshot = driver._store.newest_snapshot
        if snapshot is None:
            return
        snapshot_id = SnapshotId(snapshot.last_offset, snapshot.term)
        if self._compared_snapshots.get(name) == snapshot_id:
            return
        self._compared_snapshots[name] = snapshot_id
        records = self._view.snapshot_records(name, snapshot)
        if records is None:
            return  #  Damaged: another invariant checks that no broker accepts it.
        first, same = self._snapshots.setdefault(snapshot.last_offset, (name, records))
        if records != same:
            self._found(f"the snapshots of {first} and {name} up to {snapshot.last_offset} differ")

    def _counts(self, name: str, core: RaftCore) -> None:
        led = core.leadership
        if led is not None and -1 < led.committed_offset < led.start_offset:
            self._found(
                f"{name} leads term {core.term} from entry {led.start_offset} on, and has counted "
                f"who holds {led.committed_offset}, of an earlier one"
            )

    def _is_stored(self, name: str, driver: RaftDriver) -> None:
        core, store = driver.core, driver._store
        if core._is_installing or not store._segments:
            return  # A snapshot replaces the log, or the store is closed.
        if store._end_offset <= core.log.durable_offset:
            self._found(
                f"{name} counts entries up to {core.log.durable_offset} as durable, and its log "
                f"ends at {store._end_offset}"
            )

    def _compare(self, name: str, core: RaftCore, entry: Entry) -> None:
        first = self.committed.get(entry.offset)
        if first is None:
            self.committed[entry.offset] = entry
            self._seen_in[entry.offset] = core.term
            # Entries on a new disk may precede the first one that names the voters.
            self._is_held(name, core.log if core.log.voters else self._newest(), entry)
        elif first != entry:
            self._found(
                f"{name} has committed entry {entry.offset} of term {entry.term}, and another "
                f"controller one of term {first.term}"
            )

    def _newest(self) -> EntryLog:
        return max((one.log for one in self._cores.values()), key=lambda log: log.last_offset)

    def _is_held(self, name: str, log: EntryLog, entry: Entry) -> None:
        """Check that a majority of voters holds it; during a change, a majority of either set."""
        cores = (*self._cores.values(), *self._emptied)
        held = [one.own_key for one in cores if _holds(one, entry)]
        sets = {log.voters, log.former_voters}
        if not any(voters.is_majority(map(voters.known_as, held)) for voters in sets):
            self._found(
                f"{name} has committed entry {entry.offset} of term {entry.term}, and "
                f"{len(held)} of {len(log.voters)} hold it"
            )

    # --- at the end ------------------------------------------------------------------------------

    def judge_answers(self, answered: set[bytes]) -> None:
        """
        Check that all answered writes are committed. Judge nothing if an entry was removed from
        memory and disk between two checks, because an answered write may be that entry.

        :param answered: a unique value in the entry of each answered write.
        """
        if self.is_lost or len(self.committed) <= max(self.committed, default=-1):
            return
        payloads = [entry.payload for entry in self.committed.values()]
        for text in sorted(answered):
            if not any(text in payload for payload in payloads):
                self._found(f"{text!r} was answered, and no controller ever committed it")

    def judge_snapshots(self) -> None:
        """Replay all committed entries, and compare the state at each snapshot's end."""
        if self.is_lost:
            return
        state = MetadataState()
        for offset in range(max(self.committed, default=-1) + 1):
            if (entry := self.committed.get(offset)) is None:
                return  # Later snapshots were compared with each other only.
            records = decode_entry(entry.payload) if entry.kind is EntryKind.DATA else ()
            state.replay(records, offset=offset, epoch=entry.term, delta=MetadataDelta())
            if offset not in self._snapshots:
                continue
            name, found = self._snapshots[offset]
            if found != list(state.snapshot_records()):
                self._found(f"the snapshot of {name} up to {offset} is not what entries replay to")

    def judge_replays(self) -> None:
        """Check that all controllers at the same offset have replayed to the same state."""
        if self.is_lost:
            return
        decided = self._view.decided()
        assert decided is not None
        wanted = list(decided.snapshot_records())
        for name, state in self._view.controller_states():
            if state.offset == decided.offset and list(state.snapshot_records()) != wanted:
                self._found(f"{name} has replayed to another state than the controller that leads")


def _holds(core: RaftCore, entry: Entry) -> bool:
    log = core.log
    if entry.offset <= log.base.last_offset:
        return True
    return entry.offset <= log.durable_offset and log.holds(entry.offset, entry.term)
