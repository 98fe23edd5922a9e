"""LOOP. ``QuorumController``: requests in, committed decisions out.

One decision at a time and without a pause in it, brokers' own before a crowd of clients':
decide, rehearse, replay, propose to the log. So the next decision sees the last one, committed or
not, while the reply waits until everything that it was based on is committed. Should the log
fail, no answer says anything that is not in the log, and the process ends.
What cannot be replayed is refused before anything has changed, and so is what is too large for one
entry and has to take effect as one. A decision about very many partitions becomes several entries.

Followers of the metadata are shown committed entries only.
Decisions are made in ``control_managers.py``; here is only when, in what order, and for whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from kraftjbod.controller.brokers.foreign_metadata import require_same_log
from kraftjbod.controller.brokers.suspect_probe import IsRefused
from kraftjbod.controller.control_managers import ControlManagers, is_from_broker
from kraftjbod.controller.result import ControllerResult
from kraftjbod.controller.session_watch import SessionWatch
from kraftjbod.core.errors import (
    ErrorCode,
    ForeignMetadataError,
    InconsistentStorageError,
    LogDirImpairedError,
    NotControllerError,
    OffsetOutOfRangeError,
    OperatingError,
    StartupError,
)
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import WorkSlices
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.metadata.records import (
    MAX_ENTRY_BYTES,
    BrokerRegistrationChangeRecord,
    EntryReader,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    decode_entry,
    encode_entries,
    encode_entry,
    encode_entry_in_slices,
)
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlterPartitionReassignmentsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    FetchMetadataRequest,
    FetchMetadataResponse,
    MetadataEntry,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequest,
)
from kraftjbod.raft.driver import Proposal, RaftDriver
from kraftjbod.raft.log_store import SNAPSHOT_PIECE_BYTES, Snapshot
from kraftjbod.raft.messages import Entry

NO_RECORDS: Final = encode_entry((), LATEST_METADATA_VERSION)
"""Payload of an entry without effect."""
_SNAPSHOT_SLICE_RECORDS: Final = 500
_FOREIGN_METADATA_INTERVAL_MS: Final = 30_000


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
        session_timeout_ms: int,
        preferred_interval_ms: int | None,
        unclean_interval_ms: int,
        max_fetch_bytes: int,
        is_refused: IsRefused,
    ) -> None:
        """
        :param make_managers: called for managers that know nothing yet.
        :param features: feature levels that an empty log begins with.
        :param min_insync_replicas: the cluster's, if its metadata does not say one yet.
        :param preferred_interval_ms: how often leaderships go back; None for never.
        :param is_refused: asked about brokers that closed their connections.
        """
        #: Whoever needs them asks for them here each time, so that others can take their place.
        self._managers = make_managers()
        self._driver = driver
        self._clock = clock
        self._metrics = metrics
        self._features = features
        self._min_insync_replicas = min_insync_replicas
        self._preferred_interval_ms = preferred_interval_ms
        self._unclean_interval_ms = unclean_interval_ms
        self._max_fetch_bytes = max_fetch_bytes
        self._log = get_logger(component="controller")
        self._last_proposal: Proposal | None = None
        #: Of the snapshot that a start begins with.
        self._reader = EntryReader()
        #: The last one that changed the broker's registration.
        self._last_about: dict[BrokerId, Proposal] = {}
        #: When a broker that knows another metadata log may be logged again.
        self._foreign_metadata_due_ms = 0
        #: Something that a pass wants has no space on the disk.
        self._passes_wait = False
        self._sessions = SessionWatch(
            managers=lambda: self._managers,
            clock=clock,
            metrics=metrics,
            session_timeout_ms=session_timeout_ms,
            is_refused=is_refused,
            do_pass=self._do_pass,
        )
        self._tasks: list[asyncio.Task[None]] = []
        #: Ends with what left the state other than the log says.
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._publish_figures()

    @property
    def state(self) -> MetadataState:
        """The metadata with all that was decided, to be looked at from outside."""
        return self._managers.state

    # --- life ------------------------------------------------------------------------------------

    async def start(self, *, fork: bool = False) -> None:
        """Load the log, lead, and make sure that an empty log gets its first records.

        ``fork`` gives the log another id, see ``ControlManagers.bootstrap``.

        :raises StartupError: if the log cannot be read, or no space is left for its first records.
        :raises KafkaStorageError: if the metadata dir fails.
        """
        await self._driver.start(self)
        bootstrap = self._managers.bootstrap(self._features, self._min_insync_replicas, fork=fork)
        try:
            await self._commit(bootstrap)
        except LogDirImpairedError as e:
            raise StartupError(e.message) from e
        self._tasks.append(asyncio.create_task(self._sessions.sweep()))
        self._tasks.append(asyncio.create_task(self._sessions.probe()))
        self._tasks.append(
            asyncio.create_task(
                self._repeat(self._unclean_interval_ms, lambda: self._managers.elect_unclean())
            )
        )
        if self._preferred_interval_ms is not None:
            self._tasks.append(
                asyncio.create_task(
                    self._repeat(
                        self._preferred_interval_ms, lambda: self._managers.elect_preferred()
                    )
                )
            )

    async def wait_failed(self) -> None:
        """Only ever raises.

        :raises KafkaStorageError: the metadata log is lost.
        :raises Exception: a bug: the state is not what the log says.
        """
        log = asyncio.create_task(self._driver.wait_failed())
        ends = {log, self._broken, *self._tasks}
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._driver.stop()

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
        except ForeignMetadataError as e:
            self._log_foreign_metadata(e)
            raise

    def connection_closed(self, connection: ConnectionId) -> None:
        """The other side closed it: whose last request came on it may have died."""
        self._sessions.connection_closed(connection)

    async def _handle(self, request: RpcRequest, connection: ConnectionId | None) -> RpcResponse:
        if isinstance(request, FetchMetadataRequest):
            return await self._fetch_metadata(request)
        if not is_from_broker(request):
            # Brokers do not wait after a crowd of clients' requests.
            await WorkSlices.of_loop().turn()
        self._require_whole()
        result = self._decide(request, connection)
        if isinstance(request, BrokerHeartbeatRequest) and _needs_no_write(request, result):
            await self._until_committed(self._last_about.get(request.broker_id))
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
            self._apply(result.records, grows=_grows(request), is_atomic=result.is_atomic)
        except OperatingError:
            self._managers.take_back(request)
            raise

    async def _commit(self, result: ControllerResult[object]) -> None:
        """Make it so, and return when everything that it was based on is committed."""
        if result.records:
            self._require_whole()
            self._apply(result.records, grows=False, is_atomic=result.is_atomic)
        await self._until_committed(self._last_proposal)

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
            raise _too_large(sum(map(len, payloads)))
        if (largest := max(map(len, payloads))) > MAX_ENTRY_BYTES:
            raise _too_large(largest)
        self._driver.require_may_propose(payloads, grows=grows)
        self._rehearse(records)
        self._metrics.count(
            "ElectionFromEligibleLeaderReplicasPerSec", self._managers.elected_from_elr(records)
        )
        for part, payload in entries:
            self._replay_and_propose(part, payload, grows=grows)
        self._log_changes(records)
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
        for record in records:
            if isinstance(record, RegisterBrokerRecord | BrokerRegistrationChangeRecord):
                self._last_about[record.broker_id] = proposal

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

    # --- followers -------------------------------------------------------------------------------

    async def _fetch_metadata(self, request: FetchMetadataRequest) -> FetchMetadataResponse:
        require_same_log(
            self._managers.state,
            request.broker_id,
            request.metadata_log_id,
            request.fetch_offset - 1,
        )
        max_bytes = min(request.max_bytes, self._max_fetch_bytes)
        if request.snapshot_offset >= 0:
            return await self._snapshot_piece(
                request.snapshot_offset, request.snapshot_position, max_bytes
            )
        await self._driver.wait_for(request.fetch_offset, request.max_wait_ms)
        committed = self._driver.committed_offset
        if request.fetch_offset > committed + 1:
            raise OffsetOutOfRangeError(
                f"broker {request.broker_id} asks for metadata from {request.fetch_offset}, "
                f"but the log ends at {committed}"
            )
        if request.fetch_offset > committed:
            return FetchMetadataResponse(
                high_watermark=committed, metadata_log_id=self._managers.state.metadata_log_id
            )
        entries = await self._driver.read(max(0, request.fetch_offset), max_bytes)
        if not entries:
            return await self._snapshot_piece(-1, 0, max_bytes)
        return FetchMetadataResponse(
            high_watermark=self._driver.committed_offset,
            metadata_log_id=self._managers.state.metadata_log_id,
            entries=tuple(
                MetadataEntry(offset=entry.offset, epoch=entry.term, payload=entry.payload)
                for entry in entries
            ),
        )

    async def _snapshot_piece(
        self, last_offset: int, position: int, max_bytes: int
    ) -> FetchMetadataResponse:
        """A piece of that snapshot, or the first one of the newest if it is gone.

        :raises OffsetOutOfRangeError: there is none, or it is not that long.
        """
        found, max_bytes = None, min(max_bytes, SNAPSHOT_PIECE_BYTES)
        if last_offset >= 0:
            found = await self._driver.read_snapshot(last_offset, position, max_bytes)
        while found is None:
            newest = await self._driver.newest_snapshot()
            if newest is None:
                raise OffsetOutOfRangeError("the metadata log has no snapshot to give")
            last_offset, position = newest.last_offset, 0
            found = await self._driver.read_snapshot(last_offset, position, max_bytes)
        chunk, next_position = found
        if position and not chunk:
            raise OffsetOutOfRangeError(
                f"the metadata snapshot up to {last_offset} ends before byte {position}"
            )
        return FetchMetadataResponse(
            high_watermark=self._driver.committed_offset,
            metadata_log_id=self._managers.state.metadata_log_id,
            snapshot_offset=last_offset,
            snapshot_chunk=chunk,
            snapshot_next_position=next_position,
        )

    # --- the log speaks --------------------------------------------------------------------------

    def on_snapshot_piece(self, snapshot: Snapshot, piece: bytes) -> None:
        with _readable(f"the metadata snapshot {snapshot.file_name}"):
            records = self._reader.feed(piece)
            self._managers.replay_part(records, offset=snapshot.last_offset)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        with _readable(f"the metadata snapshot {snapshot.file_name}"):
            self._reader.end()
            self._managers.replay((), offset=snapshot.last_offset, epoch=snapshot.term)

    def on_commit(self, entry: Entry) -> None:
        """What this node proposed was replayed then; the rest comes from an earlier life."""
        if entry.offset > self._managers.state.offset:
            with _readable(f"entry {entry.offset} of the metadata log"):
                self._managers.replay(
                    decode_entry(entry.payload), offset=entry.offset, epoch=entry.term
                )

    def on_leader(self, term: int) -> None:
        self._managers.take_leadership(self._clock.now_ms())
        self._metrics.count("NewActiveControllersCount")
        self._log.info("controller_active", term=term, offset=self._managers.state.offset)

    # --- periodic work ---------------------------------------------------------------------------

    async def _repeat(self, interval_ms: int, decide: Callable[[], ControllerResult[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self._do_pass(decide)

    async def _do_pass(self, decide: Callable[[], ControllerResult[None]]) -> None:
        """Decide until there is nothing left to do; what cannot be written waits for the next."""
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
            self._log.warning("controller_pass_failed", reason=e.message)

    # --- telemetry -------------------------------------------------------------------------------

    def _log_foreign_metadata(self, error: ForeignMetadataError) -> None:
        """Brokers go on asking until somebody has put it right: said now and then only."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._foreign_metadata_due_ms:
            self._foreign_metadata_due_ms = now_ms + _FOREIGN_METADATA_INTERVAL_MS
            self._log.error("broker_knows_other_metadata", reason=error.message)

    def _log_changes(self, records: Sequence[Record]) -> None:
        moved = [r for r in records if isinstance(r, PartitionChangeRecord)]
        leaders_moved = sum(record.leader is not None for record in moved)
        self._metrics.count("LeaderChangeCount", leaders_moved)
        self._metrics.count(
            "UncleanLeaderElectionCount", sum(record.leader_recovering is True for record in moved)
        )
        for record in records:
            if isinstance(record, RegisterBrokerRecord):
                self._log.info(
                    "broker_registered",
                    broker_id=record.broker_id,
                    epoch=record.broker_epoch,
                    log_dirs=list(map(str, record.log_dirs)),
                )
            elif isinstance(record, BrokerRegistrationChangeRecord):
                self._log_registration_change(record, leaders_moved)

    def _log_registration_change(
        self, record: BrokerRegistrationChangeRecord, leaders_moved: int
    ) -> None:
        log = self._log.bind(broker_id=record.broker_id, leaders_moved=leaders_moved)
        broker = self._managers.state.brokers[record.broker_id]
        if record.impaired_log_dirs is not None:
            states = {str(one.directory_id): one.state.value for one in record.impaired_log_dirs}
            if states:
                log.warning("broker_log_dirs_impaired", impaired=states)
            else:
                log.info("broker_log_dirs_well_again")
        if record.log_dirs is not None:
            log.warning(
                "broker_log_dirs_offline",
                online=list(map(str, broker.log_dirs)),
                offline=list(map(str, broker.offline_log_dirs)),
            )
        if record.fenced:
            self._sessions.fenced(record.broker_id)
            log.warning("broker_fenced")
        elif record.fenced is False:
            log.info("broker_unfenced")
        if record.in_controlled_shutdown:
            log.info("broker_shutting_down")

    def _publish_figures(self) -> None:
        driver, gauge = self._driver, self._metrics.gauge
        gauge("ActiveBrokerCount", lambda: self._managers.broker_counts()[0])
        gauge("FencedBrokerCount", lambda: self._managers.broker_counts()[1])
        gauge("ControlledShutdownBrokerCount", lambda: self._managers.broker_counts()[2])
        gauge(
            "SaturatedLogDirectoryCount",
            lambda: self._managers.impaired_dir_count(LogDirState.SATURATED),
        )
        gauge(
            "StalledLogDirectoryCount",
            lambda: self._managers.impaired_dir_count(LogDirState.STALLED),
        )
        gauge("LastResortLeaderCount", lambda: self._managers.last_resort_leader_count())
        gauge("OfflinePartitionsCount", lambda: self._managers.index.leaderless_count)
        gauge("PreferredReplicaImbalanceCount", lambda: self._managers.index.imbalanced_count)
        gauge("ReassigningPartitions", lambda: self._managers.index.reassigning_count)
        gauge("GlobalTopicCount", lambda: len(self._managers.state.topics))
        gauge("GlobalPartitionCount", lambda: len(self._managers.index))
        gauge("LastAppliedRecordOffset", lambda: self._managers.state.offset)
        gauge("LastCommittedRecordOffset", lambda: driver.committed_offset)


def _grows(request: RpcRequest) -> bool:
    """Whether what it asks for makes the metadata grow for good."""
    if isinstance(request, AlterPartitionReassignmentsRequest):
        return any(wish.replicas is not None for wish in request.partitions)
    return isinstance(
        request, CreateTopicsRequest | CreatePartitionsRequest | UpdateFeaturesRequest
    )


def _needs_no_write(request: BrokerHeartbeatRequest, result: ControllerResult[RpcResponse]) -> bool:
    """Whether all that the answer says is in the broker's own registration."""
    return not result.records and not request.want_shut_down


def _too_large(size_bytes: int) -> OperatingError:
    return OperatingError(
        f"This would be a change of the metadata of {size_bytes} bytes, and none may have more "
        f"than {MAX_ENTRY_BYTES}; ask for less at once.",
        code=ErrorCode.POLICY_VIOLATION,
    )


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    """:raises InconsistentStorageError: what the log holds cannot be replayed."""
    try:
        yield
    except Exception as e:
        raise InconsistentStorageError(
            f"{what} cannot be replayed ({e!r}); start the version that wrote it, or restore the "
            "metadata directory from a backup"
        ) from e
