"""LOOP. ``RaftDriver``: runs ``RaftCore``: disk writes, messages, commits and snapshots.

* One task writes term and vote and then sends messages that depend on nothing else. Another task
  writes entries (replica_work.py), so that a slow write delays no message.
* Entries proposed while a sync runs share the next sync (group commit).
* Committed entries are passed to the listener in order. Then their proposers are answered.
* When the leadership is lost, proposers of uncommitted entries receive NOT_CONTROLLER, although
  their entries may still be committed. If another leader replaces these entries, the listener
  loads the log again (committed_log.py, ADR 89).
* On a full disk log_space.py decides which proposals are accepted (KIP-928). A leader whose disk
  does not take writes resigns if there are other voters. It can be elected again once its disk
  does.
* Any other failed write ends the driver: ``wait_failed`` raises, and every proposer receives the
  error.

A single voter is the leader when :meth:`RaftDriver.start` returns. With several voters the leader
may still be unknown then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from kraftjbod.core.errors import (
    KafkaStorageError,
    LogDirImpairedError,
    NotControllerError,
    OperatingError,
    StartupError,
)
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.commit_waits import CommitWaits
from kraftjbod.raft.committed_log import CommittedLog, RaftListener
from kraftjbod.raft.election_ticks import ElectionTicks, no_draw
from kraftjbod.raft.entry_cache import size_bytes_of
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log.log_writer import LogWriter
from kraftjbod.raft.log.snapshot_maker import SnapshotMaker
from kraftjbod.raft.log_opener import LogOpener
from kraftjbod.raft.machine.core import RaftCore, Role
from kraftjbod.raft.machine.messages import Entry, Message, RaftTransport, Ready, SnapshotId
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.raft.proposals import Proposal, Proposals
from kraftjbod.raft.quorum_view import QuorumView, seeks_leader, view_of, why_lost
from kraftjbod.raft.replica_work import ReplicaWork, Writable, first_failure
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind


class RaftDriver:
    """Runs this node's replica of the metadata log: writes to the disk, exchanges messages with the
    other replicas, and passes committed entries to a listener.

    All methods must be called in the event loop's thread.
    """

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        clock: Clock,
        node_id: BrokerId,
        voters: VoterSet,
        directory_id: DirectoryId | None = None,
        first_payload_of_term: bytes,
        bytes_between_snapshots: int,
        max_cached_bytes: int,
        max_pending_proposals: int = 10_000,
        kept_free_bytes: int = 0,
        retry_interval_ms: int = 500,
        start_timeout_ms: int = 30_000,
        transport: RaftTransport | None = None,
        draw_below: Callable[[int], int] | None = None,
        election_timeout_ms: int = 1_000,
    ) -> None:
        """Create without reading the log. Call :meth:`start` first.

        :param voters: used, with ``directory_id``, if neither the log nor its snapshot names
            voters.
        :param bytes_between_snapshots: a snapshot is due after this many bytes of entries.
        :param kept_free_bytes: space on a full disk that only a restart may use.
        :param retry_interval_ms: interval between attempts on an impaired disk.
        :param start_timeout_ms: how long a start waits for an impaired disk.
        :param transport: sends messages to the other voters; None if there are none.
        :param draw_below: returns a random number from 0 to below the argument.
        :param election_timeout_ms: a follower that receives no message of a leader for this long
            stands for election. A leader that no majority answers for this long resigns.
        """
        self._log_dir = log_dir
        self._start_timeout_ms = start_timeout_ms
        self._store = store
        self._clock = clock
        self._node_id = node_id
        self._voters = voters
        self._transport = transport
        self._draw_below = draw_below or no_draw
        self._log = get_logger(component="raft", node_id=node_id)
        self._space = LogSpace(log_dir=log_dir, last_bytes=kept_free_bytes)
        self._proposals = Proposals(space=self._space, max_pending=max_pending_proposals)
        self._writer = LogWriter(
            log_dir=log_dir, space=self._space, retry_interval_ms=retry_interval_ms, log=self._log
        )
        self._opener = self._make_opener(
            voters, ReplicaKey(node_id, directory_id), first_payload_of_term, retry_interval_ms
        )
        self._maker = self._make_maker(bytes_between_snapshots, retry_interval_ms)
        self._core: RaftCore | None = None
        self._listener: RaftListener | None = None
        self.committed = self._make_committed(max_cached_bytes, retry_interval_ms)
        self._was_mute = False
        self._contradicted_by: ReplicaKey | None = None
        #: The term in which the listener knows this node to be the leader.
        self._led_term: int | None = None
        #: The last entry proposed in an earlier leadership, which the listener may have applied.
        self._in_doubt: SnapshotId | None = None
        self._ticks = self._make_ticks(election_timeout_ms)
        self._work = asyncio.Event()
        self._waits = CommitWaits(clock=clock, committed_offset=lambda: self.committed_offset)
        self._replica_work: ReplicaWork | None = None
        self._living: asyncio.Task[None] | None = None

    # --- start and stop --------------------------------------------------------------------------

    def _make_opener(
        self,
        voters: VoterSet,
        key: ReplicaKey,
        first_payload_of_term: bytes,
        retry_interval_ms: int,
    ) -> LogOpener:
        return LogOpener(
            log_dir=self._log_dir,
            store=self._store,
            clock=self._clock,
            key=key,
            voters=voters,
            first_payload_of_term=first_payload_of_term,
            draw_below=self._draw_below,
            retry_interval_ms=retry_interval_ms,
            log=self._log,
        )

    def _make_committed(self, max_cached_bytes: int, retry_interval_ms: int) -> CommittedLog:
        return CommittedLog(
            log_dir=self._log_dir,
            store=self._store,
            clock=self._clock,
            log=self._log,
            max_cached_bytes=max_cached_bytes,
            retry_interval_ms=retry_interval_ms,
            term_at=lambda offset: self._required_core().log.term_at(offset),
            reloaded=self._note_reloaded,
            snapshot_damaged=self._note_snapshot_damaged,
        )

    def _make_ticks(self, election_timeout_ms: int) -> ElectionTicks:
        return ElectionTicks(
            clock=self._clock,
            election_timeout_ms=election_timeout_ms,
            log=self._log,
            is_disk_stuck=lambda: self._is_disk_stuck,
            is_alone=lambda: self.is_alone,
            is_reading=lambda: self.committed.is_reloading,
            changed=self._note_change,
        )

    def _make_maker(self, bytes_between_snapshots: int, retry_interval_ms: int) -> SnapshotMaker:
        return SnapshotMaker(
            log_dir=self._log_dir,
            store=self._store,
            space=self._space,
            log=self._log,
            bytes_between_snapshots=bytes_between_snapshots,
            retry_interval_ms=retry_interval_ms,
            committed=self._until_committed,
            in_use=lambda: self.committed.snapshots_in_use(),
            installed=lambda snapshot, start: self._required_core().compact(snapshot, start),
        )

    async def start(self, listener: RaftListener, *, alone: VoterSet | None = None) -> None:
        """Load the log, pass its committed part to the listener, and lead if there is one voter.

        :param alone: the voter set of this node only, if an operator abandons all other voters
            (``append_lone_voter_set``).
        :raises StartupError: the log cannot be read, or cannot be written because the disk is full.
        :raises KafkaStorageError: the metadata directory fails.
        """
        try:
            stored = await self._opener.open(alone)
        except LogDirImpairedError as e:
            raise self._impaired_at_start() from e
        self._listener = listener
        await self.committed.load_snapshot(listener, stored.snapshot)
        core = self._core = self._opener.machine(stored)
        self._was_mute = stored.hard_state.mute_before_term > 0
        for entry in stored.entries:
            self._remember(entry)
        if self.is_alone:
            await self._lead(core)
        else:
            # A present leader's messages arrive before that; otherwise an election should start
            # soon.
            core.stand_soon()
        self._replica_work = self._make_replica_work()
        self._living = asyncio.create_task(self._live(core))

    def _make_replica_work(self) -> ReplicaWork:
        return ReplicaWork(
            log_dir=self._log_dir,
            store=self._store,
            writer=self._writer,
            log=self._log,
            append=self._append,
            before_install=self._leave_log,
            installed=self._begin_at,
            snapshot_failed=self._maker.log_failure,
            changed=self._note_change,
            read_entries=self.committed.read,
            read_snapshot=self.committed.read_snapshot,
        )

    def release_waits(self) -> None:
        """End all present and later waits for commits, and resign if this node leads and is not the
        only voter.
        """
        self._waits.end()
        self.resign()

    async def stop(self) -> None:
        """Stop all tasks and close the log. Proposals that are not committed yet fail."""
        self.release_waits()
        await self._opener.stop()
        await self._maker.stop()
        await self.committed.stop_reload()
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
        if self._replica_work is not None:
            await self._replica_work.stop()
        self._proposals.fail(NotControllerError("the controller is stopping"))
        # On a disk that does not answer, files stay open until the process ends.
        answers = self._log_dir.state in (LogDirState.ONLINE, LogDirState.SATURATED)
        if self._core is not None and answers:
            # A failure here was logged by the directory. The close writes only the log end, which
            # matters only if the end of the log rots before the next start.
            with suppress(KafkaStorageError, LogDirImpairedError):
                if self._replica_work is not None:
                    await self._replica_work.drop_part()
                committed = self._core.applicable_offset
                close = partial(self._store.close, committed_offset=committed)
                await self._log_dir.run_operation(OpKind.CLOSE, close)

    async def wait_failed(self) -> None:
        """Wait until the driver fails; never return normally.

        :raises KafkaStorageError: the metadata directory is lost.
        :raises CancelledError: :meth:`stop` was called.
        """
        assert self._living is not None, "start() comes first"
        await asyncio.shield(self._living)

    # --- the quorum ------------------------------------------------------------------------------

    @property
    def node_id(self) -> BrokerId:
        return self._node_id

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter and may vote: it has not lost entries
        (:attr:`RaftCore.is_mute`).
        """
        core = self._required_core()
        return len(core.log.voters) == 1 and core.is_voter and not core.is_mute

    @property
    def leads(self) -> bool:
        """Whether this node leads and a valid lease excludes another leader.

        A paused process may have been voted out without noticing. The lease detects that.
        """
        if self._led_term is None:
            return False
        return self.is_alone or self._ticks.is_lease_valid(self._required_core())

    @property
    def leader(self) -> BrokerId | None:
        """Node id of the leader; None if this node knows none."""
        core = self._core
        return None if core is None or core.leader is None else core.leader.node_id

    @property
    def voters(self) -> VoterSet:
        """Voters in force, committed or not.

        Before the start, the voters passed to the constructor.
        """
        return self._voters if self._core is None else self._core.log.voters

    @property
    def seeks_leader(self) -> bool:
        """Whether this node, which was started, knows no leader that could send the log."""
        return self._core is not None and seeks_leader(self._core)

    @property
    def keeps_up(self) -> bool:
        """Whether another node leads, and the listener's state contains exactly the commits of that
        leader.
        """
        is_certain = self._in_doubt is None and not self.committed.is_reloading
        return is_certain and self._required_core().keeps_up

    @property
    def core(self) -> RaftCore:
        """The state machine, for inspection only. Callers must not change it."""
        return self._required_core()

    def receive(self, message: Message) -> None:
        """Process a message of another replica.

        Messages are ignored while the driver does not run.
        """
        if self._living is not None and not self._living.done():
            core = self._required_core()
            self._ticks.count_passed_ticks(core)
            core.step(message)
            self._note_contradiction(core)
            self._note_change()

    def _note_contradiction(self, core: RaftCore) -> None:
        leader = core.contradicted_by
        if leader is not None and leader != self._contradicted_by:
            self._log.error(
                "raft_leader_lacks_committed",
                leader=str(leader),
                term=core.term,
                committed_offset=core.committed_offset,
            )
        self._contradicted_by = leader

    def note_connection_lost(self, voter: BrokerId) -> None:
        """Stand for election soon if ``voter``, whose connection was closed or refused, is the
        known leader. No effect otherwise.
        """
        core = self._core
        if core is not None and core.leader is not None and core.leader.node_id == voter:
            self._ticks.count_passed_ticks(core)
            core.note_leader_gone()
            self._ticks.note_change(core)

    def resign(self) -> None:
        """Resign if this node leads and is not the only voter.

        The voter with the longest durable log is asked to take over.
        """
        core = self._core
        if core is not None and core.leadership is not None and not self.is_alone:
            self._ticks.count_passed_ticks(core)
            core.resign()
            self._note_change()

    def set_bytes_between_snapshots(self, size_bytes: int) -> None:
        """Set the number of log bytes after which a snapshot is due."""
        self._maker.bytes_between_snapshots = size_bytes

    def _note_change(self) -> None:
        """Handle a change of the state machine: it may have work, or have lost the leadership."""
        core = self._required_core()
        lost = self._led_term is not None and (
            core.leadership is None or core.leadership.term != self._led_term
        )
        if lost:
            self._lose_leadership(core)
        self._ticks.note_change(core)
        self._work.set()

    def _lose_leadership(self, core: RaftCore) -> None:
        assert self._listener is not None
        assert self._led_term is not None
        self._log.warning(
            "raft_leadership_lost",
            term=self._led_term,
            now_term=core.term,
            reason=why_lost(core, self._led_term),
        )
        led_term, self._led_term = self._led_term, None
        # Answer committed proposals as successful: a leader that removes itself ends with a commit.
        self._publish(core)
        self._proposals.fail(self.not_controller())
        self._listener.on_leader_lost()
        if self._proposals.last_offset > self.committed_offset:
            self._in_doubt = SnapshotId(self._proposals.last_offset, led_term)
        self._waits.lose_term()

    def not_controller(self) -> NotControllerError:
        leader = self.leader
        who = "no leader is known" if leader is None else f"node {leader} leads"
        if leader == self._node_id:
            who = "it has only just begun to lead"
        return NotControllerError(f"node {self._node_id} is not the active controller: {who}")

    @property
    def _is_disk_stuck(self) -> bool:
        return self._log_dir.state is LogDirState.STALLED or self._space.is_waiting

    def view(self) -> QuorumView:
        """Return the state of the quorum as this node knows it."""
        return view_of(
            self._required_core(), wall_ms=self._clock.wall_ms(), tick_ms=self._ticks.tick_ms
        )

    # --- proposing -------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Present term. Entries that are proposed now get it."""
        return self._required_core().term

    @property
    def next_offset(self) -> int:
        """Offset that the next proposed entry gets."""
        return self._required_core().last_offset + 1

    def propose(self, payload: bytes, *, grows: bool = False) -> Proposal:
        """Append an entry and return it with a future of its commit. Several proposals may be in
        flight.

        :param grows: whether the entry makes the metadata grow permanently, which a full disk
            refuses.
        :raises NotControllerError: this node does not lead.
        :raises OverloadedError: too many proposals are in flight.
        :raises LogDirImpairedError: the disk is full; the message names the disk.
        """
        self._require_open([payload], grows=grows)
        entry = self._required_core().propose(payload)
        self._work.set()
        return self._proposals.add(entry)

    def change_voters(self, voters: VoterSet) -> Proposal:
        """Propose another voter set, which adds, removes or names one voter.

        The set is in force at once, and permanent when the entry is committed.

        :raises NotControllerError: this node does not lead.
        :raises RequestTimedOutError: not possible now; the message has the reason.
        :raises OverloadedError: too many proposals are in flight.
        :raises LogDirImpairedError: the disk is full.
        """
        self._require_open([voters.encode()], grows=False)
        entry = self._required_core().change_voters(voters)
        self._log.info("voters_changed", offset=entry.offset, voters=[str(key) for key in voters])
        self._work.set()
        return self._proposals.add(entry)

    def ask_for_log(self, of: Iterable[ReplicaKey]) -> None:
        """Ask the replicas ``of`` for their log (:class:`Observe`).

        For a node whose own log, which may be empty, does not name these replicas. No effect if a
        leader is known.
        """
        self._required_core().ask_for_log(of)
        self._note_change()

    def require_may_propose(self, payloads: Sequence[bytes], *, grows: bool = False) -> None:
        """Raise the error that :meth:`propose` would raise now, or NotControllerError without a
        valid lease.
        """
        self._require_open(payloads, grows=grows)
        if not self.leads:
            raise self.not_controller()

    def _require_open(self, payloads: Sequence[bytes], *, grows: bool) -> None:
        self._proposals.require_space(payloads, grows=grows)
        if self._living is None or self._living.done():
            raise NotControllerError("the metadata log is closed")
        if self._led_term is None:
            raise self.not_controller()

    # --- following -------------------------------------------------------------------------------

    @property
    def committed_offset(self) -> int:
        """Last offset that was passed to the listener; -1 before the first."""
        return self.committed.offset

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Wait until the listener has applied the entry at ``offset``, at most ``timeout_ms``.

        Returns earlier if this node loses the leadership or stops. The caller compares
        :attr:`committed_offset`.
        """
        await self._waits.wait_for(offset, timeout_ms)

    # --- snapshots -------------------------------------------------------------------------------

    @property
    def is_snapshotting(self) -> bool:
        return self._maker.is_busy

    @property
    def wants_snapshot(self) -> bool:
        """Whether a snapshot should be started: enough was written since the last one, and there is
        space.

        False while a snapshot is being made.
        """
        return self._maker.is_due

    def start_snapshot(self, last_offset: int, term: int, slices: Iterable[bytes]) -> None:
        """Start a snapshot of the state after ``last_offset``, which may not be committed yet.

        :param slices: the encoded state, consumed gradually between other work of the event loop.
        """
        voters = self._required_core().log.voters_at(last_offset)
        named = b"" if voters.is_static or not len(voters) else voters.encode()
        self._maker.start(SnapshotId(last_offset, term), slices, named)

    def _note_snapshot_damaged(self) -> None:
        self._maker.want()
        self._ask_for_snapshot()

    def _ask_for_snapshot(self) -> None:
        """Request a snapshot from the listener if one is due and the listener's state is
        complete.
        """
        is_whole = self._living is not None and not self.committed.is_reloading
        if is_whole and self._maker.is_due:
            assert self._listener is not None
            self._listener.on_snapshot_due()

    async def _until_committed(self, snapshot: SnapshotId) -> bool:
        """Wait until it is certain whether the last entry of ``snapshot`` is committed.

        Return whether it is.
        """
        is_known = await self._waits.until(snapshot.last_offset)
        return is_known and self._required_core().log.holds(*snapshot)

    # --- internal --------------------------------------------------------------------------------

    def _required_core(self) -> RaftCore:
        assert self._core is not None, "start() comes first"
        return self._core

    async def _lead(self, core: RaftCore) -> None:
        """Let the only voter elect itself.

        :raises StartupError: the disk is full, or does not respond within the start timeout.
        """
        core.campaign()
        try:
            async with asyncio.timeout(self._start_timeout_ms / 1000):
                while (ready := core.ready()) or core.role is not Role.LEADER:
                    await self._carry_out(core, ready)
        except TimeoutError as e:
            raise self._impaired_at_start() from e

    def _impaired_at_start(self) -> StartupError:
        log_dir = self._log_dir
        return StartupError(
            f"metadata.log.dir {log_dir.path} is {log_dir.state.value} "
            f"({log_dir.impaired_reason}), so the metadata log cannot be written; free some space "
            "there, or repair the disk, and start again"
        )

    async def _live(self, core: RaftCore) -> None:
        work = self._replica_work
        assert work is not None, "start() made it"
        try:
            await first_failure(
                work.failed, self._run(core), work.run_writes(core), self._ticks.run_ticks(core)
            )
        except OperatingError as e:
            # The entry may or may not be on the disk, so no later entry may follow it.
            lost = KafkaStorageError(f"the metadata log cannot be written: {e.message}")
            self._log.error("metadata_log_failed", reason=e.message)
            self._proposals.fail(lost)
            raise lost from e

    async def _run(self, core: RaftCore) -> None:
        while True:
            self._work.clear()
            while ready := core.ready():
                await self._carry_out(core, ready)
            await self._work.wait()

    async def _carry_out(self, core: RaftCore, ready: Ready) -> None:
        hard_state, work = ready.hard_state, self._replica_work
        if hard_state is not None:
            write = partial(
                self._store.write_hard_state,
                hard_state,
                committed_offset=core.applicable_offset,
            )
            await self._writer.write(write)
            core.hard_state_persisted(hard_state)
            self._note_mute(hard_state.mute_before_term > 0)
        if self._transport is not None:
            for message in ready.messages:
                self._transport.send(message)
        if work is None:
            if ready.entries:
                await self._append(ready.entries, ready.generation)
        else:
            if ready.entries:
                # Before the slices: after the last slice nothing is accepted until it is installed.
                work.write_later(Writable(ready.entries, ready.generation))
            for taken in ready.slices:
                work.write_later(taken)
            work.note_committed(core)
            for read in ready.reads:
                work.read(core, read)
        self._publish(core)
        self._note_leading(core)

    def _note_mute(self, is_mute: bool) -> None:
        if self._was_mute and not is_mute:
            self._log.info("metadata_log_is_whole", term=self.term)
        self._was_mute = is_mute

    async def _append(self, entries: tuple[Entry, ...], generation: int) -> None:
        wall_ms, committed = self._clock.wall_ms(), self._required_core().applicable_offset
        await self._writer.write(
            lambda: self._store.append_entries(entries, wall_ms, committed_offset=committed)
        )
        for entry in entries:
            self._remember(entry)
            self._proposals.note_written(entry)
        self._required_core().entries_persisted(entries[-1], generation)

    def _remember(self, entry: Entry) -> None:
        self.committed.cache.add(entry)
        self._maker.note_written(size_bytes_of(entry))

    def _publish(self, core: RaftCore) -> None:
        """Pass newly committed entries to the listener, then answer their proposers and the
        waiters.
        """
        assert self._listener is not None
        self._reload_after_truncation(core, self._listener)
        if not self.committed.publish(
            self._listener, core.applicable_offset, self._proposals.answer
        ):
            return
        kept_from = self.committed.cache.trim(self.committed_offset)
        if kept_from is not None:
            core.log.release(kept_from)
        self._waits.wake_all()

    def _reload_after_truncation(self, core: RaftCore, listener: RaftListener) -> None:
        """Reload the listener if another leader replaced entries that this node had proposed.

        If the log still contains the last entry in doubt, it contains all entries before it too.
        """
        if self._in_doubt is None:
            return
        if self._in_doubt.last_offset <= self.committed_offset:
            self._in_doubt = None
        elif not core.log.holds(*self._in_doubt):
            self._in_doubt = None
            self.committed.reload(listener)

    def _note_leading(self, core: RaftCore) -> None:
        """Notify the listener of the leadership, once the first entry of the term was applied."""
        leadership = core.leadership
        if leadership is None or self._led_term is not None:
            return
        if self.committed_offset >= leadership.start_offset and not self.committed.is_reloading:
            assert self._listener is not None
            self._led_term = core.term
            self._listener.on_leader(core.term)

    # --- replacing the log by a snapshot ---------------------------------------------------------

    async def _leave_log(self) -> None:
        """Stop snapshots and reads, because a snapshot of another replica is about to replace the
        log.
        """
        await self._maker.stop()
        await self.committed.leave()

    def _begin_at(self, snapshot: SnapshotId) -> None:
        assert self._listener is not None
        self.committed.cache.clear()
        self._in_doubt = None
        self.committed.offset = snapshot.last_offset
        self.committed.reload(self._listener)

    def _note_reloaded(self, error: BaseException | None) -> None:
        work = self._replica_work
        assert work is not None, "one voter has nothing to forget"
        if error is None:
            self._note_change()
            self._ask_for_snapshot()
        elif not work.failed.done():
            work.failed.set_exception(error)
