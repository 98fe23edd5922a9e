"""``BrokerLifecycleManager``: performs what ``lifecycle_state.py`` decides.

Events come in through one queue, actions go out from one consumer; a request's outcome comes back
as an event. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.controller_channel import ControllerChannel
from kraftjbod.broker.lifecycle_events import (
    Action,
    AnnounceMayStop,
    AnnounceRegistered,
    AnnounceUnfenced,
    ArmReportDeadline,
    BecameReady,
    DirectoryFailed,
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
from kraftjbod.broker.lifecycle_state import (
    BrokerIdentity,
    BrokerState,
    LifecycleState,
    LifecycleTimes,
)
from kraftjbod.core.errors import KraftJbodError, OperatingError
from kraftjbod.core.event_queue import EventQueue
from kraftjbod.core.ids import BrokerEpoch, DirectoryId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.core.timing import Clock, ExponentialBackoff
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import BrokerHeartbeatRequest, BrokerRegistrationRequest

T = TypeVar("T")


class BrokerLifecycleManager:
    """Keeps this broker registered and its controller informed.

    ``start()`` on the running loop, then ``await registered()`` and ``await unfenced()``;
    ``set_ready_to_unfence()``, ``note_metadata(state)`` and
    ``report_offline(directory_id, leads, has_untold_replicas)`` at any time in between;
    ``await begin_controlled_shutdown(timeout_ms, at_once)`` and ``await close()`` at the end.
    ``await wait_failed()`` never returns: it raises when the broker must stop.
    ``state`` and ``broker_epoch`` tell the present; the epoch is -1 while not registered.
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
        )
        self._channel = channel
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._queue: EventQueue[Event] = EventQueue(
            name="broker_lifecycle", max_events=max_events, clock=clock
        )
        self._tasks = BackgroundTasks()
        self._is_closed = False
        #: Heartbeats that failed in a row; only the first is told.
        self._failed_heartbeats = 0
        self._log = get_logger(component="broker_lifecycle", broker_id=identity.broker_id)

    def __repr__(self) -> str:
        return f"<BrokerLifecycleManager {self._state!r}>"

    @property
    def state(self) -> BrokerState:
        return self._state.state

    @property
    def broker_epoch(self) -> BrokerEpoch:
        return self._state.broker_epoch

    def start(self) -> None:
        """Begin to register."""
        loop = asyncio.get_running_loop()
        self._registered: asyncio.Future[BrokerEpoch] = loop.create_future()
        self._unfenced: asyncio.Future[None] = loop.create_future()
        self._may_stop: asyncio.Future[None] = loop.create_future()
        self._failed: asyncio.Future[None] = loop.create_future()
        self._tasks.start(self._consume(), "broker_lifecycle")
        self._post(Started())

    async def registered(self) -> BrokerEpoch:
        """The epoch of the first registration; raises as :meth:`wait_failed` does."""
        return await self._unless_failed(self._registered)

    async def unfenced(self) -> None:
        """Return when clients may be served; raises as :meth:`wait_failed` does."""
        await self._unless_failed(self._unfenced)

    async def wait_failed(self) -> None:
        """Wait for the end that nobody asked for.

        :raises StartupError: the controller refuses this broker, for good or for too long.
        :raises KafkaStorageError: a failed directory could not be reported in time.
        """
        await asyncio.shield(self._failed)

    def set_ready_to_unfence(self) -> None:
        """All replicas are loaded, and the controller knows the directory of each."""
        self._post(BecameReady())

    def note_metadata(self, state: MetadataState) -> None:
        """Metadata has been replayed as far as ``state``."""
        self._post(
            MetadataReplayed(
                offset=state.offset,
                level=state.metadata_version,
                knows_dirs=state.knows_dirs_of(self._state.identity.broker_id),
            )
        )

    def report_offline(
        self,
        directory_id: DirectoryId,
        leads: Callable[[], bool],
        has_untold_replicas: Callable[[], bool] = bool,
    ) -> None:
        """A directory died.

        ``leads`` says, when asked later, whether we still lead there, and ``has_untold_replicas``
        whether a replica is there of which the controller may not know that.
        """
        self._post(
            DirectoryFailed(
                directory_id=directory_id, leads=leads, has_untold_replicas=has_untold_replicas
            )
        )

    async def begin_controlled_shutdown(self, timeout_ms: int, *, at_once: bool = False) -> bool:
        """Let the controller move leaders away; True if that was done within ``timeout_ms``.

        ``at_once`` for a broker that cannot serve any more: it is fenced by the first heartbeat.
        """
        self._post(ShutdownRequested(at_once=at_once))
        ends = {self._may_stop, self._failed}
        await asyncio.wait(ends, timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        if not self._may_stop.done():
            self._log.warning("controlled_shutdown_unfinished", timeout_ms=timeout_ms)
        return self._may_stop.done()

    async def close(self) -> None:
        """Stop at once; the controller notices by silence."""
        self._is_closed = True
        self._queue.close()
        await self._tasks.close()

    # --- the driver ------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        if not self._is_closed:
            self._queue.append(event)

    async def _consume(self) -> None:
        async for event in self._queue:
            self._tell(event)
            for action in self._state.handle(event, self._clock.now_ms()):
                self._perform(action)

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
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
        except OperatingError as e:
            self._post(RegistrationFailed(code=e.code, message=str(e)))
        else:
            self._post(RegistrationAnswered(broker_epoch=response.broker_epoch))

    async def _heartbeat(self, request: BrokerHeartbeatRequest) -> None:
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
        except OperatingError as e:
            self._post(HeartbeatFailed(code=e.code, message=str(e)))
        else:
            self._post(HeartbeatAnswered(response=response))

    def _fail(self, error: KraftJbodError) -> None:
        self._log.error("broker_must_stop", reason=str(error))
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # Told above; nobody is obliged to wait for it.

    async def _unless_failed(self, wanted: asyncio.Future[T]) -> T:
        ends: set[asyncio.Future[Any]] = {wanted, self._failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            self._failed.result()
        return wanted.result()

    def _tell(self, event: Event) -> None:
        match event:
            case RegistrationFailed():
                self._log.warning(
                    "broker_registration_failed", code=event.code.name, reason=event.message
                )
            case RegistrationAnswered():
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
