"""LOOP. ``LogDirAdmin``: reattaches, adds and forgets directories while this broker runs.

* Reattach: an OFFLINE directory is opened and recovered beside the old object, registered in the
  same incarnation of the broker, and replaces the old object. Its replicas are compared with the
  present metadata, follow their leaders and rejoin the ISR.
* Add: the same with a disk that is new to the node. The node records it before the cluster does.
* Forget: the cluster releases a directory that is gone or empty. Its replicas are recreated in the
  other directories from other replicas. They start empty only if the operator uses ``--force``.

One operation per directory runs at a time. An operation continues if its caller stops waiting: only
a stop of the broker interrupts it, and the next start finds the old or the new state. A directory
that fails during an operation is OFFLINE as before, and nothing else has changed.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.directories.cordon_lift import CordonLift
from kraftjbod.broker.directories.log_dir_cordons import LogDirCordons
from kraftjbod.broker.metadata.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.leftover_copies import LeftoverCopies
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    NotControllerError,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import LOST_DIR, BrokerId, DirectoryId, TopicId, TopicPartition, Uuid
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.node_config import is_below
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import LoadedDir, LoadProgress

_PROGRESS_EVERY_LOGS: Final = 500
#: Limit of the partitions that a refusal names.
_NAMED_PARTITIONS: Final = 20


class LogDirOperation(IntEnum):
    """Operations on a log directory that an operator requests; the numbers are those in
    AlterLogDirs.

    REATTACH opens an OFFLINE directory again. ADD adds a directory that is new to this node. FORGET
    releases a directory that is lost or empty.
    """

    REATTACH = 0
    ADD = 1
    FORGET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirOutcome:
    """The result of an operation on a directory: its id, its state afterwards, and a message for
    the operator. ``state`` is empty if the broker does not have the directory any more.
    """

    directory_id: DirectoryId
    state: str
    message: str


class LogDirAdmin:
    """Reattaches, adds and forgets directories.

    Call ``perform`` per request, ``run_reattachment`` once for the broker's lifetime, and ``close``
    at its end.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        logs: LogManager,
        attacher: DirAttacher,
        metadata_dir: LogDir,
        replicas: HostedReplicas,
        moves: ReplicaAlterLogDirsManager,
        leftovers: LeftoverCopies,
        publisher: BrokerMetadataPublisher,
        lifecycle: BrokerLifecycleManager,
        cordons: LogDirCordons,
        cordon_lift: CordonLift,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        reattach_interval_ms: int | None,
        jobs: JobGuard,
        registration_timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._attacher = attacher
        self._metadata_dir = metadata_dir
        self._replicas = replicas
        self._moves = moves
        self._leftovers = leftovers
        self._publisher = publisher
        self._lifecycle = lifecycle
        self._cordons = cordons
        self._cordon_lift = cordon_lift
        self._cache = cache
        self._topic_configs = topic_configs
        self._reattach_interval_ms = reattach_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._tasks = BackgroundTasks(jobs)
        #: Operations in progress by the path of their directory.
        self._under_way: dict[str, LogDirOperation] = {}
        #: Copies and moves of one directory at a time are reconciled.
        self._settling = asyncio.Lock()
        #: The last logged reason why the loop could not reattach a directory.
        self._reported: dict[str, str] = {}
        self._log = get_logger(component="log_dir_admin")

    def log_unknown(self) -> None:
        """Warn of replicas whose directory is not in ``log.dirs``, before the broker acts on that.

        A disk that was removed from ``log.dirs`` is a likely cause.
        """
        ours = {log_dir.directory_id for log_dir in self._logs.dirs()}
        unknown: Counter[DirectoryId] = Counter()
        for _, registration in self._cache.state.partitions():
            named = registration.directory_of(self._broker_id)
            if named is not None and not named.is_reserved and named not in ours:
                unknown[named] += 1
        for directory_id, replicas in unknown.items():
            self._log.warning(
                "replicas_in_unknown_log_dir",
                directory_id=str(directory_id),
                replicas=replicas,
                advice="their directory is in none of log.dirs; put it back, or they are recreated "
                "from their peers",
            )

    async def run_reattachment(self) -> None:
        """Try to reattach OFFLINE directories at the configured interval, until cancelled.

        Returns at once if no interval is configured.
        """
        if self._reattach_interval_ms is None:
            return
        while True:
            await asyncio.sleep(self._reattach_interval_ms / 1000)
            for dead in self._logs.offline_dirs():
                await self._try_again(dead)

    async def _try_again(self, dead: LogDir) -> None:
        try:
            await self._begin(LogDirOperation.REATTACH, dead.path, self._reattach(dead))
        except OperatingError as e:
            if self._reported.get(dead.path) != e.message:
                self._reported[dead.path] = e.message
                self._log.info("log_dir_still_offline", log_dir=dead.path, reason=e.message)
        else:
            self._reported.pop(dead.path, None)

    async def perform(
        self, operation: LogDirOperation, target: str, *, force: bool, timeout_ms: int
    ) -> LogDirOutcome:
        """Perform the operation and wait up to ``timeout_ms`` for its end.

        :param target: an absolute path, or ``dirid:`` and an id.
        :param force: forget a directory even if partitions lose their last copy, where unclean
            elections are allowed.
        :raises OperatingError: the operation was refused or failed: LOG_DIR_NOT_FOUND,
            INVALID_REQUEST, REASSIGNMENT_IN_PROGRESS, KAFKA_STORAGE_ERROR, or the controller's
            error. REQUEST_TIMED_OUT: the operation continues. NOT_CONTROLLER: it has ended, because
            no controller responded within ``log.dir.registration.timeout.ms``.
        """
        match operation:
            case LogDirOperation.REATTACH:
                found = self._require_dir(target)
                path, work = found.path, self._reattach(found)
            case LogDirOperation.ADD:
                path = target if target == "/" else target.rstrip("/")
                work = self._add(path)
            case LogDirOperation.FORGET:
                found = self._require_dir(target)
                path, work = found.path, self._forget(found, force=force)
            case _:
                assert_never(operation)
        doing = self._begin(operation, path, work)
        done, _ = await asyncio.wait({doing}, timeout=timeout_ms / 1000)
        if not done:
            raise RequestTimedOutError(
                f"{path}: {operation.name.lower()} takes longer than {timeout_ms} ms and "
                f"continues; the broker logs its result"
            )
        return doing.result()

    async def close(self) -> None:
        await self._tasks.close()

    def _begin(
        self, operation: LogDirOperation, path: str, work: Coroutine[object, object, LogDirOutcome]
    ) -> asyncio.Future[LogDirOutcome]:
        """Start the operation in a separate task; return its future result, which may be ignored.

        :raises OperatingError: REASSIGNMENT_IN_PROGRESS: an operation on the directory is running.
        """
        running = self._under_way.get(path)
        if operation is LogDirOperation.ADD and operation in self._under_way.values():
            running = operation  # Only one disk is added at a time, at any path.
        if running is not None:
            work.close()
            raise OperatingError(
                f"{path}: {running.name.lower()} is under way",
                code=ErrorCode.REASSIGNMENT_IN_PROGRESS,
            )
        self._under_way[path] = operation
        outcome: asyncio.Future[LogDirOutcome] = asyncio.get_running_loop().create_future()
        name = f"{operation.name.lower()}-{path}"
        self._tasks.start(self._carry_out(operation, path, work, outcome), name)
        return outcome

    async def _carry_out(
        self,
        operation: LogDirOperation,
        path: str,
        work: Coroutine[object, object, LogDirOutcome],
        outcome: asyncio.Future[LogDirOutcome],
    ) -> None:
        log = self._log.bind(operation=operation.name.lower(), log_dir=path)
        log.info("log_dir_operation_began")
        try:
            done = await work
        except OperatingError as e:
            log.info("log_dir_operation_refused", code=e.code.name, reason=e.message)
            outcome.set_exception(e)
            outcome.exception()  # Logged above; the caller may have stopped waiting.
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except Exception as e:
            self._tasks.jobs.log_failure(operation.name.lower(), e, log_dir=path)
            outcome.set_exception(_broken(operation, path, e))
            outcome.exception()
        else:
            log.info(
                "log_dir_operation_done",
                directory_id=str(done.directory_id),
                state=done.state,
                outcome=done.message,
            )
            outcome.set_result(done)
        finally:
            del self._under_way[path]

    # --- reattach --------------------------------------------------------------------------------

    async def _reattach(self, dead: LogDir) -> LogDirOutcome:
        if dead.is_online:
            raise _refused(
                f"{dead.path} is {dead.state.value}: only a directory that is OFFLINE is brought "
                f"back"
            )
        log_dir = await self._attacher.reopen(dead)
        replicas = await self._take_in(log_dir, replaces=dead)
        # An offline disk without a known id at startup is now identified.
        await self._attacher.remember(log_dir, is_added=False)
        return self._outcome(log_dir, f"is back at {log_dir.path} with {replicas} replicas")

    async def _take_in(self, log_dir: LogDir, *, replaces: LogDir | None) -> int:
        """Load a directory on trial and put it into service; return the number of its replicas.

        :param replaces: the offline object of the same directory; None for an added directory.
        """
        try:
            loaded = await self._logs.arrivals.load(log_dir, self._log_progress)
        except BaseException as e:
            self._attacher.dismiss(log_dir, e)
            raise
        async with self._settling:
            try:
                await self._register(log_dir)
            except BaseException as e:
                self._attacher.dismiss(log_dir, e)
                raise
            # No ``await`` between the registration and the installation.
            await self._install(loaded, replaces)
        return len(loaded.handles)

    async def _register(self, log_dir: LogDir) -> None:
        """Register the directory with the controller. If that fails it is reported as failed again.

        :raises KafkaStorageError: the directory failed.
        :raises OperatingError: the controller refuses it.
        :raises NotControllerError: no controller responded in time.
        """
        uid, timeout_ms = log_dir.directory_id, self._registration_timeout_ms
        attaching = asyncio.ensure_future(
            self._lifecycle.attach(uid, log_dir.path, timeout_ms=timeout_ms)
        )
        dying = asyncio.ensure_future(log_dir.gone())
        try:
            await asyncio.wait({attaching, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not log_dir.is_online:
                raise log_dir.offline_error()
            await attaching
        except (KafkaStorageError, RequestTimedOutError) as e:
            # It may be registered nevertheless, but this broker does not serve it.
            self._lifecycle.report_offline(uid, leads=lambda: self._leads_in(uid))
            if isinstance(e, KafkaStorageError):
                raise
            raise NotControllerError(
                f"{log_dir.path}: no controller acknowledged it within "
                f"log.dir.registration.timeout.ms={timeout_ms}; try again when a controller runs"
            ) from e
        finally:
            for task in (attaching, dying):
                task.cancel()
            await asyncio.gather(attaching, dying, return_exceptions=True)

    async def _install(self, loaded: LoadedDir, replaces: LogDir | None) -> None:
        arrivals = self._logs.arrivals
        arrival = arrivals.install(loaded, replaces=replaces, is_taken=self._is_taken)
        self._cordons.renew()
        loaded.log_dir.take_into_service()
        try:
            await arrivals.settle(arrival, self._disowned_by)
            await self._leftovers.resolve(self._is_taken)
        finally:
            self._publisher.reconcile_again(offline_too=True)

    def _is_taken(self, topic_partition: TopicPartition) -> bool:
        """Return whether the replica is served or being created, so that no other copy may replace
        it."""
        replica = self._replicas.get(topic_partition)
        is_ours = replica is not None and (
            replica.handle is not None or replica.state is ReplicaState.MAKING
        )
        return is_ours or self._logs.maker.is_making(topic_partition)

    def _disowned_by(self, topic_id: TopicId) -> Uuid | None:
        """Return the metadata log id if the metadata lacks the topic, else None.

        A newer topic may have the same name.
        """
        state = self._cache.state
        return None if topic_id in state.topics else state.metadata_log_id

    def _leads_in(self, directory_id: DirectoryId) -> bool:
        return any(
            registration.leader == self._broker_id
            for _, registration in self._assigned_to(directory_id)
        )

    def _log_progress(self, progress: LoadProgress) -> None:
        is_end = progress.logs_done == progress.logs_total
        if is_end or progress.logs_done % _PROGRESS_EVERY_LOGS == 0:
            self._log.info(
                "arriving_logs_loading",
                log_dir=progress.log_dir.path,
                done=progress.logs_done,
                total=progress.logs_total,
                scanned_bytes=progress.scanned_bytes,
            )

    # --- add -------------------------------------------------------------------------------------

    async def _add(self, path: str) -> LogDirOutcome:
        self._require_place(path)
        if not self._cache.state.metadata_version.has_directories:
            raise _refused(
                "the cluster's metadata.version has no directories yet: a broker has one there"
            )
        others = [*self._logs.dirs(), self._metadata_dir]
        log_dir = await self._attacher.open_new(path, others)
        try:
            self._require_unregistered(log_dir)
            await self._attacher.remember(log_dir, is_added=True)
        except BaseException as e:
            self._attacher.dismiss(log_dir, e)
            raise
        try:
            replicas = await self._take_in(log_dir, replaces=None)
        except OperatingError:
            await self._attacher.forget(log_dir.directory_id)
            raise
        what = f"was added at {path} with {replicas} replicas"
        return self._outcome(log_dir, f"{what}; add it to log.dirs for the next start")

    def _require_place(self, path: str) -> None:
        """Require that a directory of this node may be at the path.

        :raises OperatingError: INVALID_REQUEST: the path is not absolute, or it is in use.
        """
        if not path.startswith("/") or posixpath.normpath(path) != path:
            raise _refused(f"{path} is not a normalized absolute path")
        for taken in (*(log_dir.path for log_dir in self._logs.dirs()), self._metadata_dir.path):
            if path == taken:
                raise _refused(
                    f"{path} is already a directory of this broker; if it is OFFLINE, return it "
                    f"with --reattach or remove it with --forget"
                )
            if is_below(path, taken) or is_below(taken, path):
                raise _refused(f"one of {path} and {taken} is below the other")

    def _require_unregistered(self, log_dir: LogDir) -> None:
        for broker_id, broker in self._cache.state.brokers.items():
            if broker_id != self._broker_id and log_dir.directory_id in broker.known_log_dirs:
                raise _refused(
                    f"directory {log_dir.directory_id} at {log_dir.path} belongs to broker "
                    f"{broker_id}"
                )

    # --- forget ----------------------------------------------------------------------------------

    async def _forget(self, log_dir: LogDir, *, force: bool) -> LogDirOutcome:
        uid, path = log_dir.directory_id, log_dir.path
        if path == self._metadata_dir.path:
            raise _refused(f"{path} holds this broker's own metadata and cannot be forgotten")
        if all(other is log_dir for other in self._logs.online_dirs()):
            raise _refused(f"{path} is the last directory of this broker: add another one first")
        if log_dir.is_online:
            self._require_empty(log_dir)
            await self._leave_empty(log_dir)
        else:
            self._require_no_last_copy(log_dir, force=force)
            await self._release(uid)
            if log_dir.is_online or log_dir not in self._logs.dirs():
                raise KafkaStorageError(f"{path} changed meanwhile", path=path)
            self._logs.arrivals.take_out(log_dir)
        self._cordons.renew()
        await self._attacher.forget(uid)
        self._publisher.reconcile_again(offline_too=True)
        lifted = await self._cordon_lift.lift(path)
        return LogDirOutcome(
            directory_id=uid,
            state="",
            message=f"directory {uid} at {path} is forgotten; remove {path} from log.dirs, "
            f"otherwise the next start treats it as a new disk{'; ' if lifted else ''}{lifted}",
        )

    def _require_empty(self, log_dir: LogDir) -> None:
        here = {handle.topic_partition for handle in self._logs.handles_in(log_dir)}
        here |= {f.topic_partition for f in self._logs.futures() if f.log_dir is log_dir}
        here |= {m.topic_partition for m in self._moves.moves() if m.target is log_dir}
        here |= {tp for tp, _ in self._assigned_to(log_dir.directory_id)}
        if here or self._logs.maker.is_making_in(log_dir):
            raise _refused(
                f"{log_dir.path} is {log_dir.state.value} and holds {len(here)} replicas: drain it "
                f"first (kraftjbod-drain)"
            )

    async def _leave_empty(self, log_dir: LogDir) -> None:
        """Take the empty directory out of service, and put the directory back if the cluster does
        not release it.

        :raises OperatingError: as :meth:`_release`.
        """
        self._logs.arrivals.take_out(log_dir)
        try:
            await self._release(log_dir.directory_id)
        except BaseException:
            self._logs.arrivals.put_back(log_dir)
            if log_dir.is_online:
                self._lifecycle.keep(log_dir.directory_id, log_dir.path)
            raise
        # Do not keep its files open for readers of replicas that just left it.
        log_dir.put_on_trial()
        try:
            await log_dir.leave()
        except OperatingError as e:
            self._log.info("forgotten_log_dir_not_closed", log_dir=log_dir.path, reason=e.message)

    async def _release(self, uid: DirectoryId) -> None:
        """Make the cluster forget the directory.

        :raises OperatingError: the controller refuses.
        :raises NotControllerError: no controller responded in time.
        """
        if uid == LOST_DIR:
            return  # Its id was never known, so the cluster never had it.
        timeout_ms = self._registration_timeout_ms
        try:
            await self._lifecycle.forget(uid, timeout_ms=timeout_ms)
        except RequestTimedOutError as e:
            raise NotControllerError(
                f"directory {uid}: no controller forgot it within "
                f"log.dir.registration.timeout.ms={timeout_ms}; try again when a controller runs"
            ) from e

    def _require_no_last_copy(self, log_dir: LogDir, *, force: bool) -> None:
        """Require that no partition would lose its last in-sync replica.

        :param force: accept that loss for topics that allow unclean elections.
        :raises OperatingError: INVALID_REQUEST, naming the partitions that would.
        """
        last = [
            tp
            for tp, registration in self._assigned_to(log_dir.directory_id)
            if registration.holders == (self._broker_id,)
        ]
        allowed = [
            tp for tp in last if self._topic_configs.get(tp.topic).unclean_leader_election_enable
        ]
        lost = last if not force else [tp for tp in last if tp not in allowed]
        if not lost:
            return
        named = ", ".join(map(str, sorted(lost)[:_NAMED_PARTITIONS]))
        more = f" and {len(lost) - _NAMED_PARTITIONS} more" if len(lost) > _NAMED_PARTITIONS else ""
        raise _refused(
            f"{log_dir.path} holds the last in-sync replica of {named}{more}: repair the disk and "
            f"bring it back with --reattach, delete the topics, or allow them unclean elections "
            f"(unclean.leader.election.enable) and use --force, which gives those records up"
        )

    # --- lookups ---------------------------------------------------------------------------------

    def _assigned_to(
        self, directory_id: DirectoryId
    ) -> Iterator[tuple[TopicPartition, PartitionRegistration]]:
        """Yield this broker's replicas that the metadata assigns to the directory.

        O(replicas of this broker): the metadata can have a hundred times as many partitions.
        """
        for replica in self._replicas:
            if replica.registration.directory_of(self._broker_id) == directory_id:
                yield replica.topic_partition, replica.registration

    def _require_dir(self, target: str) -> LogDir:
        for log_dir in self._logs.dirs():
            if target.rstrip("/") == log_dir.path or target == log_dir.directory_id.reference:
                return log_dir
        raise OperatingError(
            f"{target} is none of this broker's directories, which are "
            f"{', '.join(f'{d.path} ({d.directory_id})' for d in self._logs.dirs())}",
            code=ErrorCode.LOG_DIR_NOT_FOUND,
        )

    def _outcome(self, log_dir: LogDir, what: str) -> LogDirOutcome:
        return LogDirOutcome(
            directory_id=log_dir.directory_id,
            state=log_dir.state.value,
            message=f"directory {log_dir.directory_id} {what}",
        )


def _refused(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REQUEST)


def _broken(operation: LogDirOperation, path: str, error: Exception) -> OperatingError:
    return OperatingError(
        f"{path}: {operation.name.lower()} failed with an unexpected error ({error!r}); "
        "the broker logs it"
    )
