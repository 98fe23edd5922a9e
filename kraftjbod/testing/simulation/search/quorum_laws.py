"""WIRE. ``QuorumLaws``: what must be so of several controllers, asked every few milliseconds.

* What one has committed the others commit too, at the same offset, and every later leader holds it.
* It was held durably by a majority when it was committed, and each of them holds it after it starts
  again.
* Who leads counts only what is of its own term: an older entry that a majority holds may still go.
* A term has one leader, and a voter one vote in it.
* Who is cut off from all others does not raise the term: it would cost them their leader later.
* What was answered to a client is committed.

Once a majority of the disks that voted is lost, nobody can say what was committed, and nothing of
that is asked for any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.messages import Entry
from kraftjbod.raft.machine.voter_set import ReplicaKey
from kraftjbod.testing.simulation.cluster_view import ClusterView

_INTERVAL_S: Final = 0.005
#: Of terms: what was under way when a controller was cut off may raise it once.
_MOST_RISE: Final = 1


class QuorumLaws:
    """:param found: called with one sentence for everything that must not be."""

    def __init__(self, view: ClusterView, *, found: Callable[[str], None]) -> None:
        self._view = view
        self._report = found
        self._said: set[str] = set()
        #: By offset, what any controller has committed.
        self.committed: dict[int, Entry] = {}
        #: By offset, the term by which that was seen at the latest.
        self._seen_in: dict[int, int] = {}
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], ReplicaKey] = {}
        #: Of each controller the newest machine, also after its end.
        self._cores: dict[str, RaftCore] = {}
        #: Those whose disks were emptied since: they were right to count, until then.
        self._emptied: list[RaftCore] = []
        #: Up to where what each has committed was compared.
        self._compared: dict[str, int] = {}
        #: Who is cut off from all others, and the term that it had then.
        self._cut_off: dict[str, int] = {}
        #: Voters whose disks are lost, as they called themselves.
        self._gone: set[ReplicaKey] = set()
        self.is_lost = False
        """Who is left of the voters is no majority of them."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_S)

    def look(self) -> None:
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
            if core.term > self._cut_off.get(name, core.term) + _MOST_RISE:
                self._found(f"{name} raised its term to {core.term} while it was cut off")

    def cut_off(self, name: str) -> None:
        """It hears nobody, until :meth:`connected`."""
        core = self._cores.get(name)
        if core is not None:
            self._cut_off[name] = core.term

    def connected(self, name: str) -> None:
        self._cut_off.pop(name, None)

    def forgets_all(self, name: str) -> None:
        """It begins with an empty disk, as another voter."""
        self.look()
        if not self._cores:
            self.is_lost = True  # Of a single one nobody looks at the machine.
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

    # --- each ------------------------------------------------------------------------------------

    def _begins(self, name: str, core: RaftCore) -> None:
        """A process, or the first look at it: what it had applied is on its disk."""
        before = self._cores.get(name)
        if before is not None and core.log.last_offset < before.applicable_offset:
            self._found(
                f"{name} has its log up to {core.log.last_offset} after a start, and had applied "
                f"up to {before.applicable_offset} before"
            )
        self._cores[name] = core
        self._compared.pop(name, None)
        self._cut_off.pop(name, None)
        self._votes = {key: vote for key, vote in self._votes.items() if key[0] != name}

    def _vote(self, name: str, core: RaftCore) -> None:
        state = core.hard_state
        if state.voted_for is None:
            return
        first = self._votes.setdefault((name, state.term), state.voted_for)
        if first != state.voted_for:
            self._found(f"{name} votes in term {state.term} for {first} and {state.voted_for}")

    def _leads(self, name: str, core: RaftCore) -> None:
        if core.leadership is None or self._leaders.get(core.term) == name:
            return
        first = self._leaders.setdefault(core.term, name)
        if first != name:
            self._found(f"term {core.term} is led by {first} and {name}")
        for offset in range(core.log.base.last_offset + 1, max(self.committed, default=-1) + 1):
            entry = self.committed.get(offset)
            if entry is None or self._seen_in[offset] >= core.term:
                continue  # Who stood still may begin to lead a term that is long over.
            if not core.log.holds(offset, entry.term):
                self._found(
                    f"{name} leads term {core.term} without entry {offset} of term {entry.term}, "
                    "which is committed"
                )
                return

    # --- what is committed -----------------------------------------------------------------------

    def _commits(self, name: str, driver: RaftDriver) -> None:
        cache, committed_offset = driver.committed.cache, driver.committed_offset
        offset = self._compared.get(name, -1) + 1
        if offset > committed_offset:
            return
        for at in range(offset, committed_offset + 1):
            if at in cache:
                self._compare(name, driver.core, cache[at])
        self._compared[name] = committed_offset

    def _counts(self, name: str, core: RaftCore) -> None:
        led = core.leadership
        if led is not None and -1 < led.committed_offset < led.start_offset:
            self._found(
                f"{name} leads term {core.term} from entry {led.start_offset} on, and has counted "
                f"who holds {led.committed_offset}, of an earlier one"
            )

    def _compare(self, name: str, core: RaftCore, entry: Entry) -> None:
        first = self.committed.get(entry.offset)
        if first is None:
            self.committed[entry.offset] = entry
            self._seen_in[entry.offset] = core.term
            # A new disk may be given entries before any of them says who votes.
            self._is_held(name, core.log if core.log.voters else self._newest(), entry)
        elif first != entry:
            self._found(
                f"{name} has committed entry {entry.offset} of term {entry.term}, and another "
                f"controller one of term {first.term}"
            )

    def _newest(self) -> EntryLog:
        return max((one.log for one in self._cores.values()), key=lambda log: log.last_offset)

    def _is_held(self, name: str, log: EntryLog, entry: Entry) -> None:
        """By a majority of the voters; of two sets where one is about to follow the other."""
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
        Entries that left the controllers' caches between two looks were not seen. Where there are
        any, an answered write may be one of them, and nothing is judged.

        :param answered: what the entry of each write that was answered has in it.
        """
        if self.is_lost or len(self.committed) <= max(self.committed, default=-1):
            return
        payloads = [entry.payload for entry in self.committed.values()]
        for text in sorted(answered):
            if not any(text in payload for payload in payloads):
                self._found(f"{text!r} was answered, and no controller ever committed it")

    def judge_replays(self) -> None:
        """All controllers that have come as far have replayed to the same state."""
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
