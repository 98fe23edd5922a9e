"""LOOP. ``QuorumController``: decides about requests, and answers once decisions are committed.

One decision is made at a time, without interruption: decide, rehearse, replay, propose. Requests of
brokers come before forwarded client requests. The next decision sees the last one, committed or
not (ADR 7). A response waits until everything that it depends on is committed.

* If the log fails, no response is sent that depends on uncommitted entries, and the process ends.
* If the leadership is lost, uncommitted decisions are dropped: the state is read again from the
  log, and waiting requests fail with NOT_CONTROLLER.
* A controller that is not active answers nothing but the name of the active one. It applies
  committed entries, so that it can take over, and sends them to brokers that cannot reach the
  leader.
* The effects of a broker's change on very many partitions are decided in parts.
* A decision that cannot be replayed is refused before anything changes. The same holds for an
  atomic decision that is too large for one entry. Other large decisions become several entries.

``control_managers.py`` makes the decisions. This file handles order, waiting and failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from kraftjbod.controller.brokers.foreign_metadata import require_log
from kraftjbod.controller.brokers.metadata_fetches import MetadataFetches
from kraftjbod.controller.brokers.suspect_probe import IsRefused
from kraftjbod.controller.control_managers import ControlManagers, is_from_broker
from kraftjbod.controller.controller_events import ControllerEvents
from kraftjbod.controller.decision_rules import NO_RECORDS as NO_RECORDS
from kraftjbod.controller.decision_rules import (
    IntervalOf,
    grows,
    needs_no_write,
    preferred_interval_ms,
    readable,
    too_large,
    unclean_interval_ms,
)
from kraftjbod.controller.quorum.metadata_followers import MetadataFollowers
from kraftjbod.controller.quorum.quorum_apis import QuorumApis
from kraftjbod.controller.result import ControllerResult
from kraftjbod.controller.session_watch import SessionWatch
from kraftjbod.core import buggify
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import (
    ForeignMetadataError,
    LogDirImpairedError,
    NotControllerError,
    OffsetOutOfRangeError,
    OperatingError,
    StartupError,
)
from kraftjbod.core.ids import BrokerId, ConnectionId, DirectoryId, Uuid
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import WorkSlices
from kraftjbod.core.scram import ScramUser
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.metadata.record_codec import (
    MAX_ENTRY_BYTES,
    EntryReader,
    decode_entry,
    encode_entries,
    encode_entry_in_slices,
)
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    Record,
    RegisterBrokerRecord,
)
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RpcRequest,
    RpcResponse,
)
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.leader_check import is_followed
from kraftjbod.raft.log.snapshot_files import Snapshot
from kraftjbod.raft.machine.messages import Entry, EntryKind
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.raft.proposals import Proposal

_SNAPSHOT_SLICE_RECORDS: Final = 500
_RETRY_S: Final = 0.2
#: Partitions that one decision about a broker changes under simulation, in some cases.
_FEW_AT_ONCE: Final = 2
#: How often a periodic pass checks whether its interval has changed.
_LOOK_MS: Final = 1000
_MAYBE_NOT_LEADING: Final = "this controller hears from no majority, so another may lead"
#: Requests whose decisions compare the metadata log and the broker's offset in it.
_NAMED_BY_BROKERS: Final = (BrokerHeartbeatRequest, BrokerRegistrationRequest)

#: Counters that are exported as 0 from the start.
_COUNTERS: Final = (
    "ElectionFromEligibleLeaderReplicasPerSec",
    "NewActiveControllersCount",
    "UnreplayableDecisionCount",
)


class QuorumController:
    """The controller on this node. While it is active it decides the requests of brokers and
    clients; otherwise it applies the entries that the active controller has committed.

    Call all its methods in the event loop's thread.
    """

    def __init__(
        self,
        *,
        make_managers: Callable[[], ControlManagers],
        driver: RaftDriver,
        clock: Clock,
        metrics: Metrics,
        features: Mapping[str, int],
        users: Sequence[ScramUser] = (),
        min_insync_replicas: int | None = None,
        is_refused: IsRefused,
        directories: Callable[[], Mapping[BrokerId, DirectoryId]] = dict,
        replayed: Callable[[], None] = lambda: None,
        log_id_committed: Callable[[Uuid | None], None] = lambda _: None,
    ) -> None:
        """:param make_managers: creates managers with empty metadata.
        :param features: feature levels for an empty log.
        :param users: users of SCRAM for an empty log.
        :param min_insync_replicas: the cluster's value, recorded if its metadata has none yet.
        :param is_refused: checks the address of a broker that closed its connection.
        :param directories: returns the known directories of the controllers.
        :param replayed: called whenever the metadata may have changed.
        :param log_id_committed: called with the log's id, if any, once it is committed.
        """
        #: Always accessed through this attribute, because the managers may be replaced.
        self._managers = make_managers()
        self._settings = self._managers.settings
        self._driver, self._clock, self._metrics = driver, clock, metrics
        self._features, self._users = features, users
        self._min_insync_replicas = min_insync_replicas
        self._make_managers = make_managers
        self._directories, self._replayed = directories, replayed
        self._log_id_committed = log_id_committed
        self._is_starting = True
        self._log = get_logger(component="controller")
        self._followers = MetadataFollowers()
        self._fetches = self._make_fetches()
        self._quorum = self._make_quorum_apis()
        self._last_proposal: Proposal | None = None
        #: Reads the snapshot at a start or a reload.
        self._reader = EntryReader()
        #: The last proposal that changed a feature or the session limit.
        self._last_feature: Proposal | None = None
        #: Per broker, the last proposal that changed its registration.
        self._last_about: dict[BrokerId, Proposal] = {}
        #: Whether a record of a periodic pass finds no space on the disk.
        self._passes_wait = False
        self._sessions = SessionWatch(
            managers=lambda: self._managers,
            clock=clock,
            metrics=metrics,
            is_refused=is_refused,
            do_pass=self._do_pass,
        )
        self._decisions = ControllerEvents(
            managers=lambda: self._managers,
            clock=clock,
            metrics=metrics,
            fenced=self._sessions.fenced,
        )
        self._left_for_later = asyncio.Event()
        #: Whether it leads, and the first records of the log exist.
        self._is_active = False
        self._tasks: list[asyncio.Task[None]] = []
        #: Completes with an error that made the state differ from the log.
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decisions.publish_figures(lambda: driver.committed_offset)
        metrics.gauge("ActiveControllerCount", lambda: int(self._is_active))
        for name in _COUNTERS:
            metrics.count(name, 0)

    def _make_fetches(self) -> MetadataFetches:
        return MetadataFetches(
            driver=self._driver,
            clock=self._clock,
            followers=self._followers,
            state=lambda: self._managers.state,
            require_up_to_date=self._require_up_to_date,
            max_fetch_bytes=lambda: self._managers.settings.metadata_max_fetch_bytes,
        )

    def _make_quorum_apis(self) -> QuorumApis:
        return QuorumApis(
            cluster_id=self._managers.cluster_id,
            driver=self._driver,
            clock=self._clock,
            followers=self._followers,
            require_active=self._require_active,
            directories=self._directories,
            state=lambda: self._managers.state,
            change=self._change_voters,
            until_committed=lambda: self._until_committed(self._last_proposal),
        )

    @property
    def is_active(self) -> bool:
        """Whether this controller makes the decisions of the cluster."""
        return self._is_active and self._driver.leads

    @property
    def driver(self) -> RaftDriver:
        return self._driver

    @property
    def state(self) -> MetadataState:
        """The metadata, including uncommitted decisions. For inspection only."""
        return self._managers.state

    @property
    def settings(self) -> DynamicControllerConfig:
        """The dynamic settings that apply now."""
        return self._managers.settings

    # --- start and stop --------------------------------------------------------------------------

    async def start(self, *, fork: VoterSet | None = None) -> None:
        """Load the log, and become active if this is the only voter.

        :param fork: the voter set of this controller only, which continues without all others; the
            log gets another id, see ``ControlManagers.bootstrap``.
        :raises StartupError: the log cannot be read, or there is no space for its first records.
        :raises KafkaStorageError: the metadata directory fails.
        """
        await self._driver.start(self, alone=fork)
        self._is_starting = False
        if self._driver.is_alone:
            try:
                await self._activate(fork=fork is not None)
            except LogDirImpairedError as e:
                raise StartupError(e.message) from e

    async def _activate(self, *, fork: bool = False) -> None:
        """Write the records that the log lacks, then become active and start the periodic passes.

        :raises LogDirImpairedError: the disk is full.
        :raises NotControllerError: this node lost the leadership.
        """
        bootstrap = self._managers.bootstrap(
            self._features, self._min_insync_replicas, fork=fork, users=self._users
        )
        await self._commit(bootstrap)
        self._log_id_committed(self._managers.state.metadata_log_id)
        self._is_active = True
        self._begin(self._sessions.sweep())
        self._begin(self._sessions.probe())
        self._begin(self._follow_up())
        self._begin(self._repeat(unclean_interval_ms, lambda: self._managers.elect_unclean()))
        self._begin(self._repeat(preferred_interval_ms, lambda: self._managers.elect_preferred()))

    async def _activate_as_leader(self) -> None:
        """Activate a leader that has other voters; resign if that fails.

        The loss of the leadership cancels this task.
        """
        while not self._is_active:
            try:
                await self._activate()
            except NotControllerError:
                # The process was paused, and its lease is not valid yet.
                await asyncio.sleep(_RETRY_S)
            except OperatingError as e:
                self._log_failed_pass(e)
                self._driver.resign()
                return

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until the leadership is lost. An error of the task ends the process."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._note_task_end)

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def wait_failed(self) -> None:
        """Wait until the controller fails. Never returns normally.

        :raises KafkaStorageError: the metadata log is lost.
        :raises CancelledError: :meth:`stop` was called.
        :raises Exception: a bug: the state differs from the log.
        """
        log = asyncio.create_task(self._driver.wait_failed())
        ends: set[asyncio.Future[None]] = {log, self._broken}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            log.cancel()
            await asyncio.gather(log, return_exceptions=True)

    def release_waits(self) -> None:
        """End all present and later waits for commits, so that the listener can close.

        Also resigns if this controller leads and is not the only voter.
        """
        self._driver.release_waits()

    async def stop(self) -> None:
        """Cancel the periodic passes, then stop the driver, see :meth:`RaftDriver.stop`."""
        tasks = self._drop_tasks()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._driver.stop()

    def _drop_tasks(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        return tasks

    # --- requests --------------------------------------------------------------------------------

    async def handle(
        self, request: RpcRequest, connection: ConnectionId | None = None
    ) -> RpcResponse:
        """Answer one request of the RPC listener, once everything that the answer depends on is
        committed.

        :param connection: the request's connection, see :meth:`connection_closed`.
        :raises OperatingError: the request is refused. NotControllerError: another controller may
            be active, or the leadership was lost before the commit.
        """
        try:
            return await self._handle(request, connection)
        except (ForeignMetadataError, OffsetOutOfRangeError) as e:
            if not self._driver.is_alone and not await is_followed(self._driver.core):
                # A broker with a longer log may have it from a newer leader.
                raise NotControllerError(f"{_MAYBE_NOT_LEADING}: {e.message}") from e
            if not isinstance(e, ForeignMetadataError):
                raise
            self._decisions.note_foreign_metadata(e)
            raise

    def connection_closed(self, connection: ConnectionId, is_reset: bool = False) -> None:
        """Note that the other side closed ``connection``.

        A broker whose last request used it may have died.

        :param is_reset: whether it was reset, so that the broker may live without noticing.
        """
        self._sessions.connection_closed(connection, is_reset=is_reset)

    async def _handle(self, request: RpcRequest, connection: ConnectionId | None) -> RpcResponse:
        if isinstance(request, FetchMetadataRequest):
            return await self._fetches.fetch(request)
        if self._is_active and not isinstance(request, _NAMED_BY_BROKERS):
            require_log(self._managers.state, request.metadata_log_id)
        if self._is_active:
            self._managers.require_rights(request)
        about_quorum = await self._quorum.handle(request)
        if about_quorum is not None:
            return about_quorum
        if not is_from_broker(request):
            # Client requests queue here, so that requests of brokers do not wait behind them.
            await WorkSlices.of_loop().turn()
        self._require_active()
        result = self._decide(request, connection)
        while result.is_part:
            # Other requests run between the parts, and may have done the rest.
            await self._commit(result)
            self._require_active()
            result = self._decide(request, connection)
        if isinstance(request, BrokerHeartbeatRequest) and needs_no_write(request, result):
            await self._until_committed(self._last_about.get(request.broker_id))
            # The announced session length depends on it.
            await self._until_committed(self._last_feature)
        else:
            if result.records:
                self._apply_or_take_back(request, result)
            await self._until_committed(self._last_proposal)
        return result.response

    def is_of_registered_broker(self, request: RpcRequest) -> bool:
        """Return whether the request names a registered broker and the broker's current epoch."""
        broker = self._managers.state.brokers.get(getattr(request, "broker_id", BrokerId(-1)))
        return broker is not None and broker.epoch == getattr(request, "broker_epoch", None)

    def _decide(
        self, request: RpcRequest, connection: ConnectionId | None
    ) -> ControllerResult[RpcResponse]:
        now_ms = self._clock.now_ms()
        result = self._managers.decide(request, now_ms=now_ms, connection=connection)
        if isinstance(request, AlterPartitionRequest):
            self._decisions.note_ineligible(request, result.response)
        if isinstance(request, BrokerRegistrationRequest):
            most = len(result.records)
            while most > 1 and not (result.is_part or self._fits_one_entry(result.records)):
                # The changes assume the registration, so that no entry may have them without it.
                most //= 2
                self._managers.take_back(request)
                result = self._managers.decide(
                    request, now_ms=now_ms, connection=connection, most=most
                )
        return result

    def _fits_one_entry(self, records: Sequence[Record]) -> bool:
        level = self._managers.state.metadata_version
        return len(encode_entries(records, level, MAX_ENTRY_BYTES)) <= 1

    def _apply_or_take_back(
        self, request: RpcRequest, result: ControllerResult[RpcResponse]
    ) -> None:
        try:
            self._apply(result.records, grows=grows(request), is_atomic=result.is_atomic)
        except OperatingError:
            self._managers.take_back(request)
            raise

    async def _commit(self, result: ControllerResult[object]) -> None:
        """Apply a result, and wait until everything that it depends on is committed.

        :raises OperatingError: as :meth:`_apply`.
        :raises NotControllerError: the leadership was lost before the commit.
        """
        if result.records:
            self._require_running()
            self._apply(result.records, grows=False, is_atomic=result.is_atomic)
        await self._until_committed(self._last_proposal)

    def _change_voters(self, voters: VoterSet) -> asyncio.Future[None]:
        """Apply another set of voters. Return a future that completes when it is committed."""
        self._require_active()
        proposal = self._driver.change_voters(voters)
        # The entry has no record, but the state's offset must match the end of the log.
        offset = proposal.entry.offset
        self._managers.replay((), offset=offset, epoch=proposal.entry.term)
        self._last_proposal = proposal
        return proposal.committed

    async def _until_committed(self, proposal: Proposal | None) -> None:
        if proposal is not None and proposal.entry.offset > self._driver.committed_offset:
            await asyncio.shield(proposal.committed)

    def _apply(self, records: Sequence[Record], *, grows: bool, is_atomic: bool) -> None:
        """Rehearse, replay and propose ``records``, so that only replayable records are written.

        :param grows: whether the records make the metadata grow permanently; a full disk refuses
            them.
        :param is_atomic: whether the records must fit one entry.
        :raises OverloadedError: too many entries are in flight; nothing has changed.
        :raises LogDirImpairedError: the disk is full; nothing has changed.
        :raises OperatingError: POLICY_VIOLATION: too large for one entry. UNKNOWN_SERVER_ERROR: not
            replayable. Nothing has changed.
        """
        entries = encode_entries(records, self._managers.state.metadata_version, MAX_ENTRY_BYTES)
        payloads = [payload for _, payload in entries]
        if is_atomic and len(entries) > 1:
            raise too_large(sum(map(len, payloads)))
        if (largest := max(map(len, payloads))) > MAX_ENTRY_BYTES:
            raise too_large(largest)
        self._driver.require_may_propose(payloads, grows=grows)
        self._rehearse(records)
        self._metrics.count(
            "ElectionFromEligibleLeaderReplicasPerSec", self._managers.elected_from_elr(records)
        )
        for part, payload in entries:
            self._replay_and_propose(part, payload, grows=grows)
        self._decisions.note_changes(records)
        if self._managers.has_follow_ups:
            self._left_for_later.set()
        if self._driver.wants_snapshot:
            self._start_snapshot()

    def _rehearse(self, records: Sequence[Record]) -> None:
        driver = self._driver
        try:
            self._managers.rehearse(records, offset=driver.next_offset, epoch=driver.term)
        except Exception as e:
            self._metrics.count("UnreplayableDecisionCount")
            kinds = sorted({type(record).__name__ for record in records})
            self._log.error("decision_not_replayable", kinds=kinds, exc_info=e)
            raise OperatingError(
                f"The controller decided what cannot be replayed ({e!r}), so it was not written; "
                "its telemetry says why."
            ) from e

    def _replay_and_propose(
        self, records: Sequence[Record], payload: bytes, *, grows: bool
    ) -> None:
        """Replay and propose one entry.

        An error in between makes the state differ from the log, and ends the process.
        """
        driver, offset = self._driver, self._driver.next_offset
        try:
            assert offset == self._managers.state.offset + 1, (offset, self._managers.state.offset)
            self._managers.replay(records, offset=offset, epoch=driver.term)
            proposal = driver.propose(payload, grows=grows)
            assert proposal.entry.offset == offset, (proposal.entry.offset, offset)
        except Exception as e:
            if not self._broken.done():
                self._broken.set_exception(e)
            raise
        self._last_proposal = proposal
        self._note_metadata()
        for record in records:
            if isinstance(record, RegisterBrokerRecord | BrokerRegistrationChangeRecord):
                self._last_about[record.broker_id] = proposal
            elif isinstance(record, FeatureLevelRecord):
                self._last_feature = proposal

    def _require_active(self) -> None:
        """Require that this controller is active.

        :raises NotControllerError: another controller is active, or none at present.
        """
        self._require_running()
        if not self.is_active:
            raise self._driver.not_controller()

    def _require_up_to_date(self, offset: int | None) -> bool:
        """Return whether this controller is active. If it is not, it may answer as a follower.

        :param offset: an offset that must be committed here if this is a follower. None accepts
            only the active controller.
        :raises NotControllerError: this controller is not active and may not answer as a follower.
        """
        self._require_running()
        driver = self._driver
        if self.is_active:
            return True
        # An empty log does not contain its id.
        if offset is None or driver.committed_offset < max(0, offset):
            raise driver.not_controller()
        if not driver.keeps_up:
            raise driver.not_controller()
        return False

    def _require_running(self) -> None:
        """Require that the state of this controller may be used.

        :raises NotControllerError: the state differs from the log, and the process ends.
        """
        if self._broken.done():
            raise NotControllerError("the controller stops after an internal error")

    def _start_snapshot(self) -> None:
        """Start a snapshot of a copy of the state: the state itself changes while it is encoded."""
        copy = self._managers.state.copy()
        slices = encode_entry_in_slices(
            copy.snapshot_records(),
            copy.snapshot_record_count(),
            _SNAPSHOT_SLICE_RECORDS,
            copy.metadata_version,
        )
        self._driver.start_snapshot(copy.offset, copy.epoch, slices)

    # --- callbacks of the log --------------------------------------------------------------------

    def on_snapshot_piece(self, snapshot: Snapshot, piece: bytes) -> None:
        with readable(f"the metadata snapshot {snapshot.file_name}"):
            records = self._reader.feed(piece)
            self._managers.replay_part(records, offset=snapshot.last_offset)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        with readable(f"the metadata snapshot {snapshot.file_name}"):
            self._reader.end()
            self._managers.replay((), offset=snapshot.last_offset, epoch=snapshot.term)
        self._log_id_committed(self._managers.state.metadata_log_id)
        self._note_metadata()

    def on_snapshot_due(self) -> None:
        self._start_snapshot()

    def on_commit(self, entry: Entry) -> None:
        """Apply a committed entry, unless it was replayed here when it was proposed."""
        if entry.offset > self._managers.state.offset:
            with readable(f"entry {entry.offset} of the metadata log"):
                records = decode_entry(entry.payload) if entry.kind is EntryKind.DATA else ()
                self._managers.replay(records, offset=entry.offset, epoch=entry.term)
            # All replayed entries are committed, up to this one.
            self._log_id_committed(self._managers.state.metadata_log_id)
            self._note_metadata()
        follows = not (self._driver.is_alone or self._driver.leads)
        if follows and self._driver.wants_snapshot:
            self._start_snapshot()

    def _note_metadata(self) -> None:
        """Apply changed settings and call ``replayed``: the metadata may have changed."""
        if self._managers.settings != self._settings:
            self._settings = self._managers.settings
            self._driver.set_bytes_between_snapshots(
                self._settings.metadata_log_max_record_bytes_between_snapshots
            )
            changed = self._managers.set_by_metadata()
            self._log.info("controller_config_changed", values=changed)
        self._replayed()

    def on_reset(self) -> None:
        """Discard the whole state, because uncommitted decisions are void. The log is replayed
        next."""
        self._managers = self._make_managers()
        self._reader = EntryReader()

    def on_leader(self, term: int) -> None:
        if buggify.is_on and buggify.fires("controller.few_follow_ups"):
            self._managers.limit_followed_at_once(_FEW_AT_ONCE)
        self._managers.take_leadership(self._clock.now_ms())
        self._metrics.count("NewActiveControllersCount")
        self._log.info("controller_active", term=term, offset=self._managers.state.offset)
        if not self._is_starting:
            self._begin(self._activate_as_leader())

    def on_leader_lost(self) -> None:
        """Stop deciding. The driver fails the requests that wait for a commit."""
        self._is_active = False
        self._drop_tasks()
        self._last_proposal = self._last_feature = None
        self._last_about.clear()
        self._sessions.forget()
        self._followers.forget()
        self._passes_wait = False
        self._log.info("controller_resigned", offset=self._driver.committed_offset)

    # --- periodic work ---------------------------------------------------------------------------

    async def _repeat(
        self, interval_ms: IntervalOf, decide: Callable[[], ControllerResult[None]]
    ) -> None:
        """Repeat a periodic pass for ever.

        :param interval_ms: returns the interval by the present settings; it may become infinite and
            finite again.
        """
        while True:
            waited_ms = 0
            while (left_ms := interval_ms(self._managers.settings) - waited_ms) > 0:
                step_ms = min(left_ms, _LOOK_MS)
                await asyncio.sleep(step_ms / 1000)
                waited_ms += int(step_ms)
            await self._do_pass(decide)

    async def _follow_up(self) -> None:
        """Decide about the partitions that decisions about brokers left, in parts.

        Other requests are answered between two parts.
        """
        while True:
            self._left_for_later.clear()
            while self._managers.has_follow_ups:
                is_done = await self._do_pass(lambda: self._managers.follow_up())
                await asyncio.sleep(0 if is_done else _RETRY_S)
            await self._left_for_later.wait()

    async def _do_pass(self, decide: Callable[[], ControllerResult[None]]) -> bool:
        """Repeat ``decide`` until it has no records. Return False if a write failed."""
        try:
            while (result := decide()).records:
                await self._commit(result)
                self._passes_wait = False
        except LogDirImpairedError as e:
            # Logged once, because passes are frequent and a disk may stay full for long.
            if not self._passes_wait:
                self._log.warning("controller_passes_wait", reason=e.message)
            self._passes_wait = True
        except OperatingError as e:
            self._log_failed_pass(e)
        else:
            return True
        return False

    def _log_failed_pass(self, error: OperatingError) -> None:
        self._log.warning("controller_pass_failed", reason=error.message)
