"""``BrokerLifecycleManager`` against a scripted controller on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import (
    BrokerIdentity,
    BrokerState,
    LifecycleTimes,
)
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    OperatingError,
    RequestTimedOutError,
    StartupError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import RegisterBrokerRecord
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ListenerInfo,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.gates import until
from tests.unit.broker.scripted_controller import (
    RealClock,
    ScriptedController,
    channel_to,
    serving,
)

A, B = DirectoryId(b"A" * 16), DirectoryId(b"B" * 16)
QUICK = LifecycleTimes(
    heartbeat_interval_ms=10,
    eager_interval_ms=2,
    registration_timeout_ms=60_000,
    dir_failure_timeout_ms=60_000,
)
PATIENT_MS = 60_000


@dataclass
class Cluster:
    """State of the scripted controller; each of ``registration_refusals`` is used once."""

    epoch: int = 40
    online: set[DirectoryId] = field(default_factory=set)
    forgotten: set[DirectoryId] = field(default_factory=set)
    heartbeat_code: ErrorCode | None = None
    registration_refusals: list[ErrorCode] = field(default_factory=list)
    refused_heartbeats: int = 0

    def answer(self, request: RpcRequest) -> RpcResponse:
        if isinstance(request, BrokerRegistrationRequest):
            if self.registration_refusals:
                raise OperatingError("refused by script", code=self.registration_refusals.pop(0))
            self.epoch += not self.online
            self.online = set(request.log_dirs)
            self.forgotten.update(request.forgotten_log_dirs)
            return BrokerRegistrationResponse(broker_epoch=BrokerEpoch(self.epoch))
        assert isinstance(request, BrokerHeartbeatRequest), request
        if self.heartbeat_code is not None:
            self.refused_heartbeats += 1
            raise OperatingError("refused by script", code=self.heartbeat_code)
        if request.broker_epoch != self.epoch:
            raise OperatingError("other epoch", code=ErrorCode.STALE_BROKER_EPOCH)
        self.online -= set(request.offline_log_dirs)
        is_caught_up = request.current_metadata_offset >= self.epoch
        return BrokerHeartbeatResponse(
            is_caught_up=is_caught_up,
            is_fenced=request.want_fence or not is_caught_up,
            should_shut_down=request.want_shut_down,
        )


def at_offset(offset: int) -> MetadataState:
    """Metadata at ``offset`` that contains broker 1 and its directories."""
    state = MetadataState()
    record = RegisterBrokerRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(offset),
        incarnation_id=Uuid(b"I" * 16),
        listeners=(),
        rack=None,
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=(A, B),
    )
    state.replay([record], offset=offset, epoch=1, delta=MetadataDelta())
    return state


def manager_on(channel: ControllerChannel, times: LifecycleTimes = QUICK) -> BrokerLifecycleManager:
    return BrokerLifecycleManager(
        identity=BrokerIdentity(
            broker_id=BrokerId(1),
            cluster_id="c",
            incarnation_id=Uuid(b"i" * 16),
            listeners=(ListenerInfo(name="PLAINTEXT", host="127.0.0.1", port=9092),),
        ),
        online_dirs=[A, B],
        channel=channel,
        clock=RealClock(),
        random_unit=lambda: 0.5,
        times=times,
        registration_backoff_ms=1,
        registration_backoff_max_ms=5,
    )


@asynccontextmanager
async def living(
    cluster: Cluster, times: LifecycleTimes = QUICK
) -> AsyncIterator[tuple[BrokerLifecycleManager, ScriptedController]]:
    controller = ScriptedController(cluster.answer)
    async with serving(controller), channel_to(controller.voter()) as channel:
        manager = manager_on(channel, times)
        manager.start()
        try:
            yield manager, controller
        finally:
            await manager.close()


async def come_up(manager: BrokerLifecycleManager) -> None:
    manager.note_metadata(at_offset(await manager.registered()))
    manager.set_ready_to_unfence()
    await manager.unfenced()


def reports(seen: list[RpcRequest], *directory_ids: DirectoryId) -> bool:
    """Return whether the last heartbeat names exactly these directories."""
    beats = [request for request in seen if isinstance(request, BrokerHeartbeatRequest)]
    return bool(beats) and beats[-1].offline_log_dirs == directory_ids


async def test_lifecycle_manager_registers_unfences_and_shuts_down() -> None:
    async with living(Cluster()) as (manager, _):
        assert await manager.registered() == 41
        assert manager.state is BrokerState.STARTING
        await come_up(manager)
        assert manager.broker_epoch == 41 and "running" in repr(manager)
        assert await manager.begin_controlled_shutdown(PATIENT_MS)
        assert await manager.begin_controlled_shutdown(PATIENT_MS), "a second request is harmless"


async def test_failed_directory_is_reported_to_the_controller() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, controller):
        await come_up(manager)
        with capture_logs() as logged:
            manager.report_offline(B, lambda: True)
            await controller.wait_seen(lambda seen: reports(seen, B))
            count = len(controller.seen)
            await controller.wait_seen(lambda seen: len(seen) > count + 1)
            assert cluster.online == {A} and reports(controller.seen, B)
        assert [e["event"] for e in logged] == ["log_dir_failure_acknowledged"]


async def test_directory_that_fails_during_a_heartbeat_is_reported_in_the_next_one() -> None:
    slow = LifecycleTimes(heartbeat_interval_ms=60_000, eager_interval_ms=60_000)
    cluster = Cluster()
    async with living(cluster, slow) as (manager, controller):
        await come_up(manager)
        controller.may_answer.clear()
        manager.report_offline(A, lambda: True)
        await controller.wait_seen(lambda seen: reports(seen, A))
        manager.report_offline(B, lambda: True)
        controller.may_answer.set()
        await controller.wait_seen(lambda seen: reports(seen, A, B))


async def test_unreported_failed_directory_stops_a_broker_that_leads_in_it() -> None:
    hasty = LifecycleTimes(heartbeat_interval_ms=10, eager_interval_ms=2, dir_failure_timeout_ms=20)
    cluster = Cluster()
    async with living(cluster, hasty) as (manager, _):
        await come_up(manager)
        cluster.heartbeat_code = ErrorCode.NOT_CONTROLLER
        with capture_logs() as logged:
            manager.report_offline(B, lambda: True)
            with pytest.raises(KafkaStorageError, match=r"log\.dir\.failure\.timeout\.ms"):
                await manager.wait_failed()
        assert "broker_must_stop" in {e["event"] for e in logged}


async def test_registration_is_retried_while_the_controller_refuses_it() -> None:
    cluster = Cluster(registration_refusals=[ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 2)
    with capture_logs() as logged:
        async with living(cluster) as (manager, _):
            assert await manager.registered() == 41
    refusals = [e for e in logged if e["event"] == "broker_registration_failed"]
    assert [e["code"] for e in refusals] == ["DUPLICATE_BROKER_REGISTRATION"] * 2


async def test_registration_at_another_cluster_fails_all_waits() -> None:
    cluster = Cluster(registration_refusals=[ErrorCode.INCONSISTENT_CLUSTER_ID])
    async with living(cluster) as (manager, _):
        for waiting in (manager.registered(), manager.unfenced(), manager.wait_failed()):
            with pytest.raises(StartupError, match="refused by script"):
                await waiting


async def test_broker_registers_again_after_stale_broker_epoch() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, controller):
        await come_up(manager)
        cluster.epoch = 99
        cluster.online.clear()
        with capture_logs() as logged:
            await controller.wait_seen(
                lambda seen: sum(isinstance(r, BrokerRegistrationRequest) for r in seen) == 2
            )
            manager.note_metadata(at_offset(100))
            await controller.wait_seen(
                lambda seen: (
                    isinstance(seen[-1], BrokerHeartbeatRequest) and seen[-1].broker_epoch == 100
                )
            )
        assert manager.broker_epoch == 100
        (failed,) = [e for e in logged if e["event"] == "broker_heartbeat_failed"]
        assert failed["code"] == "STALE_BROKER_EPOCH"


async def lose_session(cluster: Cluster, manager: BrokerLifecycleManager) -> float:
    """Refuse heartbeats until the session has expired, and return the loop time of that moment.

    A slow machine may let it expire before the first refusal, which the second one follows.
    """
    cluster.heartbeat_code = ErrorCode.UNKNOWN_SERVER_ERROR
    refused = cluster.refused_heartbeats + 2
    await until(lambda: cluster.refused_heartbeats >= refused and manager.is_session_over)
    return asyncio.get_running_loop().time()


async def test_session_regained_waits_for_a_response_and_returns_first_failure_time() -> None:
    cluster = Cluster()
    async with living(cluster, replace(QUICK, session_timeout_ms=50)) as (manager, _):
        await come_up(manager)
        regained = asyncio.ensure_future(manager.session_regained())
        ended_s = await lose_session(cluster, manager)
        assert not regained.done()
        cluster.heartbeat_code = None
        assert await regained < ended_s, "the first heartbeat that failed"


async def test_session_regained_covers_both_of_two_outages_before_one_call() -> None:
    """A connection may have been silent since the first of them."""
    cluster = Cluster()
    async with living(cluster, replace(QUICK, session_timeout_ms=50)) as (manager, _):
        await come_up(manager)
        ended_s = []
        for _ in range(2):
            ended_s.append(await lose_session(cluster, manager))
            cluster.heartbeat_code = None
            await manager.session()
        assert await manager.session_regained() < ended_s[0], "the first failure of both outages"


async def test_controlled_shutdown_without_consent_ends_after_its_timeout() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, _):
        await come_up(manager)
        cluster.heartbeat_code = ErrorCode.UNKNOWN_SERVER_ERROR
        with capture_logs() as logged:
            assert not await manager.begin_controlled_shutdown(20)
        assert "controlled_shutdown_unfinished" in {e["event"] for e in logged}


async def test_heartbeats_report_cordons_and_an_impairment_until_it_ends() -> None:
    async with living(Cluster()) as (manager, controller):
        await come_up(manager)

        def says(impaired: tuple[DirectoryId, ...], cordoned: tuple[DirectoryId, ...]) -> None:
            beats = [r for r in controller.seen if isinstance(r, BrokerHeartbeatRequest)]
            said = beats[-1].impaired_log_dirs or ()
            assert tuple(d.directory_id for d in said) == impaired
            assert beats[-1].cordoned_log_dirs == cordoned

        def last(seen: list[RpcRequest]) -> BrokerHeartbeatRequest | None:
            return seen[-1] if isinstance(seen[-1], BrokerHeartbeatRequest) else None

        manager.report_impaired(B, LogDirState.SATURATED)
        manager.set_cordoned([A])
        await controller.wait_seen(
            lambda seen: (
                (beat := last(seen)) is not None
                and beat.impaired_log_dirs != ()
                and beat.cordoned_log_dirs != ()
            )
        )
        says((B,), (A,))
        manager.report_recovered(B)
        await controller.wait_seen(
            lambda seen: (beat := last(seen)) is not None and beat.impaired_log_dirs == ()
        )
        says((), (A,))


async def test_attach_and_forget_directory_keep_the_broker_epoch() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, controller):
        await come_up(manager)
        manager.report_offline(B, lambda: True)
        await controller.wait_seen(lambda seen: reports(seen, B))
        await asyncio.gather(
            manager.attach(B, "/b", timeout_ms=PATIENT_MS),
            manager.attach(B, "/b", timeout_ms=PATIENT_MS),
        )
        assert cluster.online == {A, B} and manager.broker_epoch == 41
        await manager.forget(B, timeout_ms=PATIENT_MS)
        assert cluster.online == {A} and cluster.forgotten == {B}
        assert manager.state is BrokerState.RUNNING


async def test_refused_attach_raises_and_keeps_the_broker_running() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, _):
        await come_up(manager)
        cluster.registration_refusals.append(ErrorCode.INVALID_REQUEST)
        with capture_logs() as logged, pytest.raises(OperatingError, match="refused by script"):
            await manager.attach(DirectoryId(b"D" * 16), "/d", timeout_ms=PATIENT_MS)
        assert "log_dir_change_refused" in {e["event"] for e in logged}
        assert manager.state is BrokerState.RUNNING and cluster.online == {A, B}


async def test_attach_and_forget_end_on_timeout_failure_or_close() -> None:
    cluster = Cluster()
    async with living(cluster) as (manager, _):
        await come_up(manager)
        cluster.heartbeat_code = ErrorCode.NOT_CONTROLLER
        cluster.registration_refusals += [ErrorCode.NOT_CONTROLLER] * 10_000
        with pytest.raises(RequestTimedOutError, match="continues to report it"):
            await manager.forget(B, timeout_ms=20)
        waiting = asyncio.create_task(manager.attach(B, "/b", timeout_ms=PATIENT_MS))
        await asyncio.sleep(0)
        manager.report_offline(B, lambda: False)
        with pytest.raises(KafkaStorageError, match="died again"):
            await waiting
        last = asyncio.create_task(manager.attach(B, "/b", timeout_ms=PATIENT_MS))
        await asyncio.sleep(0)
        await manager.close()
        with pytest.raises(OperatingError, match="stopping"):
            await last


async def test_closed_lifecycle_manager_sends_nothing() -> None:
    async with living(Cluster()) as (manager, controller):
        await come_up(manager)
        await manager.close()
        count = len(controller.seen)
        manager.report_offline(A, lambda: True)
        manager.note_metadata(at_offset(1_000))
        await asyncio.sleep(0)
        assert len(controller.seen) == count
