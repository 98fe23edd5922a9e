"""LOOP. ``QuorumController``: requests in, committed decisions out.

One decision at a time and without a pause in it, brokers' own before a crowd of clients':
decide, rehearse, replay, propose to the log. So the next decision sees the last one, committed or
not, while the reply waits until everything that it was based on is committed. Should the log
fail, no answer says anything that is not in the log, and the process ends.
Should the leadership go, what was decided and not committed is forgotten: the state is read again
from the log, and whoever waits hears NOT_CONTROLLER. A controller that does not lead says nothing
but that, and who does; it applies what is committed, so that it can take over, and gives it to
brokers that cannot ask the leader.
What a change of a broker means for very many partitions is decided part by part, each by itself.
What cannot be replayed is refused before anything has changed, and so is what is too large for one
entry and has to take effect as one. A decision about very many partitions becomes several entries.

Decisions are made in ``control_managers.py``; here is only when, in what order, and for whom.
"""

from __future__ import annotations

import asyncio
import dataclasses
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
#: How often a pass looks whether its interval is another one.
_LOOK_MS: Final = 1000
_MAYBE_NOT_LEADING: Final = "another controller may lead by now, for this one hears no majority"
#: Their decisions compare the log, and how far it was followed.
_NAMED_BY_BROKERS: Final = (BrokerHeartbeatRequest, BrokerRegistrationRequest)

#: Exported as 0 before they count anything.
_COUNTERS: Final = (
    "ElectionFromEligibleLeaderReplicasPerSec",
    "NewActiveControllersCount",
    "UnreplayableDecisionCount",
)


class QuorumController:
    """The controller of the cluster. All methods are for the loop's thread."""

    def __init__(
        self,
        *,
        make_managers: Callable[[], ControlManagers],
        driver: RaftDriver,
        clock: Clock,
        metrics: Metrics,
        features: Mapping[str, int],
        min_insync_replicas: int | None = None,
        is_refused: IsRefused,
        directories: Callable[[], Mapping[BrokerId, DirectoryId]] = dict,
        replayed: Callable[[], None] = lambda: None,
        log_id_committed: Callable[[Uuid | None], None] = lambda _: None,
    ) -> None:
        """
        :param make_managers: called for managers that know nothing yet.
        :param features: feature levels that an empty log begins with.
        :param min_insync_replicas: the cluster's, if its metadata does not say one yet.
        :param is_refused: asked about brokers that closed their connections.
        :param directories: of the controllers, as far as they were heard of.
        :param replayed: called whenever the metadata may have changed.
        :param log_id_committed: called with the log's id, if it has one, once that is committed.
        """
        #: Whoever needs them asks for them here each time, so that others can take their place.
        self._managers = make_managers()
        self._settings = self._managers.settings
        self._driver = driver
        self._clock, self._metrics = clock, metrics
        self._features = features
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
        #: Of the snapshot that a start begins with.
        self._reader = EntryReader()
        #: The last one that changed a feature, or how long sessions may last.
        self._last_feature: Proposal | None = None
        #: The last one that changed the broker's registration.
        self._last_about: dict[BrokerId, Proposal] = {}
        #: Something that a pass wants has no space on the disk.
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
        #: It decides: it leads, and its term has what a log has to begin with.
        self._is_active = False
        self._tasks: list[asyncio.Task[None]] = []
        #: Ends with what left the state other than the log says.
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
        """Whether this is the controller that decides."""
        return self._is_active and self._driver.leads

    @property
    def driver(self) -> RaftDriver:
        return self._driver

    @property
    def state(self) -> MetadataState:
        """The metadata with all that was decided, to be looked at from outside."""
        return self._managers.state

    @property
    def settings(self) -> DynamicControllerConfig:
        """What this controller goes by now."""
        return self._managers.settings

    # --- life ------------------------------------------------------------------------------------

    async def start(self, *, fork: VoterSet | None = None) -> None:
        """Load the log, and be active if there is no other voter.

        ``fork`` gives the log another id, see ``ControlManagers.bootstrap``, and it names who goes
        on with it: this controller, without all others.

        :raises StartupError: if the log cannot be read, or no space is left for its first records.
        :raises KafkaStorageError: if the metadata dir fails.
        """
        await self._driver.start(self, alone=fork)
        self._is_starting = False
        if self._driver.is_alone:
            try:
                await self._activate(fork=fork is not None)
            except LogDirImpairedError as e:
                raise StartupError(e.message) from e

    async def _activate(self, *, fork: bool = False) -> None:
        """Make sure that an empty log gets its first records, and decide from then on.

        :raises LogDirImpairedError: there is no space for them.
        :raises NotControllerError: this node leads no more.
        """
        bootstrap = self._managers.bootstrap(self._features, self._min_insync_replicas, fork=fork)
        await self._commit(bootstrap)
        self._log_id_committed(self._managers.state.metadata_log_id)
        self._is_active = True
        self._begin(self._sessions.sweep())
        self._begin(self._sessions.probe())
        self._begin(self._follow_up())
        self._begin(self._repeat(unclean_interval_ms, lambda: self._managers.elect_unclean()))
        self._begin(self._repeat(preferred_interval_ms, lambda: self._managers.elect_preferred()))

    async def _activate_as_leader(self) -> None:
        """Of several; if it cannot, somebody else may. Ends with the leadership at the latest."""
        while not self._is_active:
            try:
                await self._activate()
            except NotControllerError:
                # It stood still, and is not certain yet that it leads.
                await asyncio.sleep(_RETRY_S)
            except OperatingError as e:
                self._log_failed_pass(e)
                self._driver.resign()
                return

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Until the leadership goes; what ends it before ends the process."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._note_task_end)

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def wait_failed(self) -> None:
        """Only ever raises.

        :raises KafkaStorageError: the metadata log is lost.
        :raises Exception: a bug: the state is not what the log says.
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
        """Answer the followers that wait for news, so that the door can close."""
        self._driver.release_waits()

    async def stop(self) -> None:
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
        """Answer one request; the handler of the RPC door.

        :param connection: what it came on, see :meth:`connection_closed`.
        :raises OperatingError: if the request is refused.
        """
        try:
            return await self._handle(request, connection)
        except (ForeignMetadataError, OffsetOutOfRangeError) as e:
            if not self._driver.is_alone and not await is_followed(self._driver.core):
                # Who knows more may know it of the one who leads by now.
                raise NotControllerError(f"{_MAYBE_NOT_LEADING}: {e.message}") from e
            if not isinstance(e, ForeignMetadataError):
                raise
            self._decisions.note_foreign_metadata(e)
            raise

    def connection_closed(self, connection: ConnectionId, is_reset: bool = False) -> None:
        """The other side closed it: whose last request came on it may have died.

        :param is_reset: its process may live and not know of it.
        """
        self._sessions.connection_closed(connection, is_reset=is_reset)

    async def _handle(self, request: RpcRequest, connection: ConnectionId | None) -> RpcResponse:
        if isinstance(request, FetchMetadataRequest):
            return await self._fetches.fetch(request)
        if self._is_active and not isinstance(request, _NAMED_BY_BROKERS):
            require_log(self._managers.state, request.metadata_log_id)
        about_quorum = await self._quorum.handle(request)
        if about_quorum is not None:
            return about_quorum
        if not is_from_broker(request):
            # Brokers do not wait after a crowd of clients' requests.
            await WorkSlices.of_loop().turn()
        self._require_active()
        result = self._decide(request, connection)
        while result.is_part:
            # Others have their turn between the parts, and may have done what is left.
            await self._commit(result)
            self._require_active()
            result = self._decide(request, connection)
        if isinstance(request, BrokerHeartbeatRequest) and needs_no_write(request, result):
            await self._until_committed(self._last_about.get(request.broker_id))
            # The session that is announced goes by it.
            await self._until_committed(self._last_feature)
        else:
            if result.records:
                self._apply_or_take_back(request, result)
            await self._until_committed(self._last_proposal)
        return result.response

    def is_of_registered_broker(self, request: RpcRequest) -> bool:
        """Whether the request names a broker and the epoch that it has."""
        broker = self._managers.state.brokers.get(getattr(request, "broker_id", BrokerId(-1)))
        return broker is not None and broker.epoch == getattr(request, "broker_epoch", None)

    def _decide(
        self, request: RpcRequest, connection: ConnectionId | None
    ) -> ControllerResult[RpcResponse]:
        now_ms = self._clock.now_ms()
        result = self._managers.decide(request, now_ms=now_ms, connection=connection)
        if isinstance(request, AlterPartitionRequest):
            self._decisions.note_ineligible(request, result.response)
        if not isinstance(request, BrokerRegistrationRequest) or len(result.records) < 2:
            return result
        level = self._managers.state.metadata_version
        if len(encode_entries(result.records, level, MAX_ENTRY_BYTES)) > 1:
            # Its last record goes by the offset of its entry: the partitions come first.
            changes = dataclasses.replace(result, records=result.records[:-1], is_atomic=False)
            self._apply_or_take_back(request, changes)
            self._managers.take_back(request)
            result = self._managers.decide(request, now_ms=now_ms, connection=connection)
        return result

    def _apply_or_take_back(
        self, request: RpcRequest, result: ControllerResult[RpcResponse]
    ) -> None:
        try:
            self._apply(result.records, grows=grows(request), is_atomic=result.is_atomic)
        except OperatingError:
            self._managers.take_back(request)
            raise

    async def _commit(self, result: ControllerResult[object]) -> None:
        """Make it so, and return when everything that it was based on is committed."""
        if result.records:
            self._require_whole()
            self._apply(result.records, grows=False, is_atomic=result.is_atomic)
        await self._until_committed(self._last_proposal)

    def _change_voters(self, voters: VoterSet) -> asyncio.Future[None]:
        """In force at once; what it gives is done when that is committed."""
        self._require_active()
        proposal = self._driver.change_voters(voters)
        # No record, and yet an entry: the state is that of the log's end again.
        offset = proposal.entry.offset
        self._managers.replay((), offset=offset, epoch=proposal.entry.term)
        self._last_proposal = proposal
        return proposal.committed

    async def _until_committed(self, proposal: Proposal | None) -> None:
        if proposal is not None and proposal.entry.offset > self._driver.committed_offset:
            await asyncio.shield(proposal.committed)

    def _apply(self, records: Sequence[Record], *, grows: bool, is_atomic: bool) -> None:
        """Rehearsed, then replayed, then proposed: what is written can be replayed again.

        :raises LogDirImpairedError: the disk is full; nothing has changed.
        :raises OperatingError: POLICY_VIOLATION, if it is too much for one entry;
            UNKNOWN_SERVER_ERROR, if it cannot be replayed. Nothing has changed.
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
        """What fails here leaves a state that is not the log's: the process ends."""
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
        """:raises NotControllerError: another one decides, or nobody just now."""
        self._require_whole()
        if not self.is_active:
            raise self._driver.not_controller()

    def _require_up_to_date(self, offset: int | None) -> bool:
        """Whether this controller decides; if not, it follows who does, and ``offset`` is
        committed here. None if only who decides will do.

        :raises NotControllerError: neither.
        """
        self._require_whole()
        driver = self._driver
        if self.is_active:
            return True
        # An empty log says nothing, not even which one it is.
        if offset is None or driver.committed_offset < max(0, offset):
            raise driver.not_controller()
        if not driver.keeps_up:
            raise driver.not_controller()
        return False

    def _require_whole(self) -> None:
        """:raises NotControllerError: the process ends, and nobody may build on its state."""
        if self._broken.done():
            raise NotControllerError("the controller met an error in its own state and ends")

    def _start_snapshot(self) -> None:
        """From a copy, since the state goes on changing while it is encoded."""
        copy = self._managers.state.copy()
        slices = encode_entry_in_slices(
            copy.snapshot_records(),
            copy.snapshot_record_count(),
            _SNAPSHOT_SLICE_RECORDS,
            copy.metadata_version,
        )
        self._driver.start_snapshot(copy.offset, copy.epoch, slices)

    # --- the log speaks --------------------------------------------------------------------------

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
        """What this node proposed was replayed then; the rest comes from an earlier life."""
        if entry.offset > self._managers.state.offset:
            with readable(f"entry {entry.offset} of the metadata log"):
                records = decode_entry(entry.payload) if entry.kind is EntryKind.DATA else ()
                self._managers.replay(records, offset=entry.offset, epoch=entry.term)
            # All that is replayed is committed, up to this entry.
            self._log_id_committed(self._managers.state.metadata_log_id)
            self._note_metadata()
        follows = not (self._driver.is_alone or self._driver.leads)
        if follows and self._driver.wants_snapshot:
            self._start_snapshot()

    def _note_metadata(self) -> None:
        """It may have changed."""
        if self._managers.settings != self._settings:
            self._settings = self._managers.settings
            self._driver.set_bytes_between_snapshots(
                self._settings.metadata_log_max_record_bytes_between_snapshots
            )
            changed = self._managers.set_by_metadata()
            self._log.info("controller_config_changed", values=changed)
        self._replayed()

    def on_reset(self) -> None:
        """What was decided is not so; the log says what is."""
        self._managers = self._make_managers()
        self._reader = EntryReader()

    def on_leader(self, term: int) -> None:
        self._managers.take_leadership(self._clock.now_ms())
        self._metrics.count("NewActiveControllersCount")
        self._log.info("controller_active", term=term, offset=self._managers.state.offset)
        if not self._is_starting:
            self._begin(self._activate_as_leader())

    def on_leader_lost(self) -> None:
        """Whoever waits for an answer hears it of the driver."""
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
        """The interval may change meanwhile, also to never and back."""
        while True:
            waited_ms = 0
            while (left_ms := interval_ms(self._managers.settings) - waited_ms) > 0:
                step_ms = min(left_ms, _LOOK_MS)
                await asyncio.sleep(step_ms / 1000)
                waited_ms += int(step_ms)
            await self._do_pass(decide)

    async def _follow_up(self) -> None:
        """What concerns very many partitions is decided for some at a time, others in between."""
        while True:
            self._left_for_later.clear()
            while self._managers.has_follow_ups:
                is_done = await self._do_pass(lambda: self._managers.follow_up())
                await asyncio.sleep(0 if is_done else _RETRY_S)
            await self._left_for_later.wait()

    async def _do_pass(self, decide: Callable[[], ControllerResult[None]]) -> bool:
        """Decide until there is nothing left to do; False if it could not be written, and waits."""
        try:
            while (result := decide()).records:
                await self._commit(result)
                self._passes_wait = False
        except LogDirImpairedError as e:
            # Said once: the passes come often, and the disk stays full for long.
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
