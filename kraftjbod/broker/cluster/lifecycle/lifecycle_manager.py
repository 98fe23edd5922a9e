"""LOOP. ``BrokerLifecycleManager``: performs the actions of ``lifecycle_state.py``.

Events arrive in one queue, and one task performs the actions. The result of a request is another
event. This module makes no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    Action,
    AnnounceChanges,
    AnnounceMayStop,
    AnnounceRefusal,
    AnnounceRegistered,
    AnnounceUnfenced,
    ArmReportDeadline,
    BecameReady,
    ControllerLost,
    CordonsChanged,
    DirectoryAttached,
    DirectoryFailed,
    DirectoryForgotten,
    DirectoryImpaired,
    DirectoryRecovered,
    DisarmReportDeadline,
    Event,
    HeartbeatAnswered,
    HeartbeatFailed,
    MetadataReplayed,
    RegistrationAnswered,
    RegistrationFailed,
    ReportDeadlinePassed,
    SendHeartbeat,
    SendRegistration,
    ShutDown,
    ShutdownRequested,
    Started,
    WakeAt,
    WokeUp,
)
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import (
    BrokerIdentity,
    BrokerState,
    LifecycleState,
    LifecycleTimes,
)
from kraftjbod.broker.cluster.lifecycle.reported_directories import DirectoryChanges
from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    KraftJbodError,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import BrokerEpoch, DirectoryId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.event_queue import EventQueue
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import BrokerHeartbeatRequest, BrokerRegistrationRequest
from kraftjbod.storage.checkpoints import CleanShutdown

T = TypeVar("T")


class BrokerLifecycleManager:
    """Keeps this broker registered and its controller informed.

    Call ``start()`` on the running loop, then ``await registered()`` and ``await unfenced()``. In
    between, call ``set_ready_to_unfence()`` and ``note_metadata(state)``. At the end call ``await
    begin_controlled_shutdown(timeout_ms, at_once)`` and ``await close()``. ``await wait_failed()``
    never returns: it raises when the broker must stop.

    Directories: ``report_offline``, ``report_impaired``, ``report_recovered``, ``set_cordoned``,
    ``await attach(...)`` and ``await forget(...)``.

    Session: ``is_session_over`` is whether the controller may have fenced this broker, and ``await
    session()`` waits until it is False. ``may_be_deposed`` is whether other brokers may lead
    partitions of this broker, which lasts a little longer. ``await session_regained()`` waits for
    the end of an outage in which the session expired.

    ``state`` and ``broker_epoch`` are the present values. The epoch is -1 while not registered.
    """

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        online_dirs: Collection[DirectoryId],
        channel: ControllerChannel,
        clock: Clock,
        random_unit: Callable[[], float],
        times: LifecycleTimes | None = None,
        request_timeout_ms: int = 2_000,
        registration_backoff_ms: int = 100,
        registration_backoff_max_ms: int = 1_000,
        max_events: int = 10_000,
        cordoned_dirs: Collection[DirectoryId] = (),
        impaired_dirs: Mapping[DirectoryId, LogDirState] = MappingProxyType({}),
        clean_shutdowns: Mapping[DirectoryId, CleanShutdown] = MappingProxyType({}),
        memory: MetadataMemory | None = None,
    ) -> None:
        self._state = LifecycleState(
            identity=identity,
            online_dirs=online_dirs,
            times=times or LifecycleTimes(),
            backoff=ExponentialBackoff(
                initial_ms=registration_backoff_ms,
                max_ms=registration_backoff_max_ms,
                random_unit=random_unit,
            ),
            cordoned_dirs=cordoned_dirs,
            impaired_dirs=impaired_dirs,
            clean_shutdowns=clean_shutdowns,
        )
        self._channel = channel
        self._memory = memory
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._queue: EventQueue[Event] = EventQueue(
            name="broker_lifecycle", max_events=max_events, clock=clock
        )
        self._tasks = BackgroundTasks()
        self._is_closed = False
        #: Callers that wait for the controller's response about a directory. Bounded by the
        #: directories.
        self._attaching: dict[DirectoryId, asyncio.Future[None]] = {}
        self._forgetting: dict[DirectoryId, asyncio.Future[None]] = {}
        #: The controller has another metadata log; only the first refusal is logged.
        self._is_refused = False
        #: Consecutive failed heartbeats; only the first is logged.
        self._failed_heartbeats = 0
        #: Set by a response of the controller.
        self._heard = asyncio.Event()
        #: Loop time of the first heartbeat that failed since the controller's last response.
        self._failing_since_s: float | None = None
        #: The same for the first ended outage with an expired session that no call has returned.
        self._lost_since_s: float | None = None
        self._regained = asyncio.Event()
        self._log = get_logger(component="broker_lifecycle", broker_id=identity.broker_id)

    def __repr__(self) -> str:
        return f"<BrokerLifecycleManager {self._state!r}>"

    @property
    def state(self) -> BrokerState:
        return self._state.state

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self._state.broker_epoch

    @property
    def is_session_over(self) -> bool:
        """Whether the session has expired, so that the controller may have fenced this broker."""
        return self._state.is_session_over(self._clock.now_ms())

    @property
    def may_be_deposed(self) -> bool:
        """Whether other brokers may lead partitions that this broker leads by its metadata."""
        return self._state.may_be_deposed(self._clock.now_ms())

    async def session(self) -> None:
        """Return at once unless the session has expired. Then wait for a response of the controller
        that renews it.
        """
        while self.is_session_over:
            self._heard.clear()
            await self._heard.wait()

    async def session_regained(self) -> float:
        """Wait for the end of an outage in which the session expired. Each outage is returned once;
        outages that ended before the call are returned together.

        :return: loop time, in seconds, of the first heartbeat that failed in these outages.
        """
        while self._lost_since_s is None:
            self._regained.clear()
            await self._regained.wait()
        since_s, self._lost_since_s = self._lost_since_s, None
        return since_s

    @property
    def unacknowledged_dirs(self) -> frozenset[DirectoryId]:
        """Failed directories that the controller has not acknowledged."""
        return self._state.unacknowledged_dirs

    def start(self) -> None:
        """Start to register this broker, and to send heartbeats."""
        loop = asyncio.get_running_loop()
        self._registered: asyncio.Future[BrokerEpoch] = loop.create_future()
        self._unfenced: asyncio.Future[None] = loop.create_future()
        self._may_stop: asyncio.Future[None] = loop.create_future()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._channel.on_control_lost = lambda: self._post(ControllerLost())
        self._tasks.start(self._consume(), "broker_lifecycle")
        self._post(Started())

    async def registered(self) -> BrokerEpoch:
        """Wait for the first registration and return its epoch; raises as :meth:`wait_failed`
        does."""
        return await self._unless_failed(self._registered)

    async def unfenced(self) -> None:
        """Wait until the controller unfences the broker for the first time; raises as
        :meth:`wait_failed` does.
        """
        await self._unless_failed(self._unfenced)

    async def wait_failed(self) -> None:
        """Wait for an unrequested end of the broker.

        :raises ClusterRefusedError: the controller refuses this broker permanently.
        :raises ClusterUnreachableError: no controller registered it in time.
        :raises KafkaStorageError: a failed directory could not be reported in time.
        """
        await asyncio.shield(self._failed)

    def set_ready_to_unfence(self) -> None:
        """Note that all replicas are loaded and the controller knows the directory of each."""
        self._post(BecameReady())

    def note_metadata(self, state: MetadataState) -> None:
        """Note that metadata has been replayed up to ``state``."""
        broker_id = self._state.identity.broker_id
        broker = state.brokers.get(broker_id)
        self._post(
            MetadataReplayed(
                offset=state.offset,
                level=state.metadata_version,
                knows_dirs=state.knows_dirs_of(broker_id),
                online_dirs=None if broker is None else frozenset(broker.log_dirs),
            )
        )

    def report_offline(
        self,
        directory_id: DirectoryId,
        leads: Callable[[], bool],
        has_unreported_replicas: Callable[[], bool] = bool,
    ) -> None:
        """Report a failed directory. A pending :meth:`attach` of it fails.

        :param leads: returns whether this broker still leads a replica there.
        :param has_unreported_replicas: returns whether an assignment of a replica into the
            directory is pending, so that the controller may not know that the replica is there.
        """
        self._post(
            DirectoryFailed(
                directory_id=directory_id,
                leads=leads,
                has_unreported_replicas=has_unreported_replicas,
            )
        )
        died = KafkaStorageError("it died again", directory_id=directory_id)
        _give_up(self._attaching, directory_id, died)

    def report_impaired(self, directory_id: DirectoryId, state: LogDirState) -> None:
        """Report a saturated or stalled directory in every heartbeat until it recovers."""
        self._post(DirectoryImpaired(directory_id=directory_id, state=state))

    def report_recovered(self, directory_id: DirectoryId) -> None:
        """Report that an impaired directory recovered; no effect for any other directory."""
        self._post(DirectoryRecovered(directory_id=directory_id))

    def set_cordoned(self, directory_ids: Collection[DirectoryId]) -> None:
        """Set the complete set of cordoned directories."""
        self._post(CordonsChanged(cordoned=frozenset(directory_ids)))

    async def attach(self, directory_id: DirectoryId, path: str, *, timeout_ms: int) -> None:
        """Register a directory that returned or is new, and wait until the controller has done so.

        An earlier failure of the directory is reported first. When this method returns, the local
        metadata has the consequences of both, such as a new leader epoch.

        :raises OperatingError: the controller refuses; the directory is not registered.
        :raises KafkaStorageError: the directory failed meanwhile.
        :raises RequestTimedOutError: no response within ``timeout_ms``; the broker keeps trying.
        """
        event = DirectoryAttached(directory_id=directory_id, path=path)
        await self._ask_for(self._attaching, directory_id, event, timeout_ms)

    def keep(self, directory_id: DirectoryId, path: str) -> None:
        """Withdraw :meth:`forget` of a directory: register it again without waiting."""
        self._post(DirectoryAttached(directory_id=directory_id, path=path))

    async def forget(self, directory_id: DirectoryId, *, timeout_ms: int) -> None:
        """Make the cluster release the id of a directory that is gone, and wait until it has.

        :raises OperatingError: the controller refuses; the directory stays registered and offline.
        :raises RequestTimedOutError: no response within ``timeout_ms``; the broker keeps trying.
        """
        event = DirectoryForgotten(directory_id=directory_id)
        await self._ask_for(self._forgetting, directory_id, event, timeout_ms)

    async def begin_controlled_shutdown(self, timeout_ms: int, *, at_once: bool = False) -> bool:
        """Ask the controller to move leaders away, and wait until it has or ``timeout_ms`` have
        passed.

        :param at_once: for a broker that cannot serve: the first heartbeat asks to be fenced.
        :return: True if the controller agrees to the stop or does not have this broker's
            registration; False after the timeout, or if the broker must stop (:meth:`wait_failed`).
        """
        self._post(ShutdownRequested(at_once=at_once))
        ends = {self._may_stop, self._failed}
        await asyncio.wait(ends, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if not self._may_stop.done():
            self._log.warning("controlled_shutdown_unfinished", timeout_ms=timeout_ms)
        return self._may_stop.done()

    async def close(self) -> None:
        """Stop at once; pending :meth:`attach` and :meth:`forget` fail. The controller notices the
        missing heartbeats.
        """
        self._is_closed = True
        stopping = OperatingError("the broker is stopping")
        for waiting in (self._attaching, self._forgetting):
            for directory_id in tuple(waiting):
                _give_up(waiting, directory_id, stopping)
        self._queue.close()
        await self._tasks.close()

    # --- the driver ------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        if not self._is_closed:
            self._queue.append(event)

    async def _consume(self) -> None:
        async for event in self._queue:
            self._log_event(event)
            was_over = self.is_session_over
            for action in self._state.handle(event, self._clock.now_ms()):
                self._perform(action)
            if isinstance(event, HeartbeatAnswered | RegistrationAnswered):
                self._note_answer(was_over=was_over)
            elif isinstance(event, HeartbeatFailed) and self._failing_since_s is None:
                self._failing_since_s = asyncio.get_running_loop().time()

    def _note_answer(self, *, was_over: bool) -> None:
        if was_over and self._failing_since_s is not None:
            if self._lost_since_s is None:
                self._lost_since_s = self._failing_since_s
            self._regained.set()
        self._failing_since_s = None
        self._heard.set()

    def _perform(self, action: Action) -> None:
        match action:
            case SendRegistration(request):
                self._tasks.start(self._register(request), "broker_registration")
            case SendHeartbeat(request):
                self._tasks.start(self._heartbeat(request), "broker_heartbeat")
            case WakeAt(at_ms):
                self._queue.schedule("wake", at_ms, WokeUp())
            case ArmReportDeadline(directory_id, at_ms):
                passed = ReportDeadlinePassed(directory_id=directory_id)
                self._queue.schedule(directory_id, at_ms, passed)
            case DisarmReportDeadline(directory_id):
                self._queue.cancel(directory_id)
                self._log.info("log_dir_failure_acknowledged", directory_id=str(directory_id))
            case AnnounceRegistered(broker_epoch):
                _settle(self._registered, broker_epoch)
            case AnnounceChanges(changes):
                self._settle_changes(changes, None)
            case AnnounceRefusal(changes, error):
                self._settle_changes(changes, error)
            case AnnounceUnfenced():
                self._log.info("unfenced_by_controller")
                _settle(self._unfenced, None)
            case AnnounceMayStop():
                _settle(self._may_stop, None)
            case ShutDown(error):
                self._fail(error)
            case _:
                assert_never(action)

    async def _register(self, request: BrokerRegistrationRequest) -> None:
        if self._memory is not None:
            request = request.model_copy(
                update={
                    "metadata_log_id": self._memory.followed.metadata_log_id,
                    "applied_metadata_offset": self._memory.applied_offset,
                }
            )
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
            if self._memory is not None:
                self._memory.note_metadata_log_id(response.metadata_log_id)
        except OperatingError as e:
            self._post(RegistrationFailed(code=e.code, message=str(e)))
        else:
            self._post(
                RegistrationAnswered(
                    broker_epoch=response.broker_epoch,
                    metadata_offset=response.metadata_offset,
                    session_timeout_ms=response.session_timeout_ms,
                )
            )

    async def _heartbeat(self, request: BrokerHeartbeatRequest) -> None:
        if self._memory is not None:
            named = {"metadata_log_id": self._memory.followed.metadata_log_id}
            request = request.model_copy(update=named)
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
        except OperatingError as e:
            self._post(HeartbeatFailed(code=e.code, message=str(e)))
        else:
            self._post(HeartbeatAnswered(response=response))

    async def _ask_for(
        self,
        waiting: dict[DirectoryId, asyncio.Future[None]],
        directory_id: DirectoryId,
        event: DirectoryAttached | DirectoryForgotten,
        timeout_ms: int,
    ) -> None:
        """Post ``event`` and wait for the controller's response about the directory.

        Callers for the same directory share one future of ``waiting``.

        :raises RequestTimedOutError: no response within ``timeout_ms``; the broker keeps trying.
        """
        answered = waiting.setdefault(directory_id, asyncio.get_running_loop().create_future())
        self._post(event)
        ends: set[asyncio.Future[None]] = {answered, self._failed}
        await asyncio.wait(ends, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            answered.result()
            return
        if self._failed.done():
            self._failed.result()
        raise RequestTimedOutError(
            f"the controller did not confirm directory {directory_id} within {timeout_ms} ms; "
            "the broker continues to report it"
        )

    def _settle_changes(self, changes: DirectoryChanges, error: OperatingError | None) -> None:
        """Complete the callers that wait for ``changes``; ``error`` is None if they were
        accepted."""
        for waiting, directory_ids in (
            (self._attaching, changes.attached),
            (self._forgetting, changes.forgotten),
        ):
            for directory_id in directory_ids:
                if error is not None:
                    _give_up(waiting, directory_id, error)
                elif (answered := waiting.pop(directory_id, None)) is not None:
                    _settle(answered, None)
        if error is not None:
            self._log.warning(
                "log_dir_change_refused",
                attached=[str(directory_id) for directory_id in changes.attached],
                forgotten=[str(directory_id) for directory_id in changes.forgotten],
                reason=str(error),
            )

    def _fail(self, error: KraftJbodError) -> None:
        self._log.error("broker_must_stop", reason=str(error))
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # Logged above; a caller need not wait for it.

    async def _unless_failed(self, wanted: asyncio.Future[T]) -> T:
        ends: set[asyncio.Future[Any]] = {wanted, self._failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            self._failed.result()
        return wanted.result()

    def _log_event(self, event: Event) -> None:
        match event:
            case RegistrationFailed():
                if not self._is_refused:
                    self._log.warning(
                        "broker_registration_failed", code=event.code.name, reason=event.message
                    )
                self._is_refused = event.code is ErrorCode.FOREIGN_METADATA
            case RegistrationAnswered():
                self._is_refused = False
                self._log.info("registered_with_controller", broker_epoch=event.broker_epoch)
            case HeartbeatFailed():
                self._failed_heartbeats += 1
                if self._failed_heartbeats == 1:
                    self._log.warning(
                        "broker_heartbeat_failed", code=event.code.name, reason=event.message
                    )
            case HeartbeatAnswered():
                self._failed_heartbeats = 0
            case _:
                pass


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _give_up(
    waiting: dict[DirectoryId, asyncio.Future[None]],
    directory_id: DirectoryId,
    error: OperatingError,
) -> None:
    answered = waiting.pop(directory_id, None)
    if answered is not None and not answered.done():
        answered.set_exception(error)
        answered.exception()  # The caller may have stopped waiting.
