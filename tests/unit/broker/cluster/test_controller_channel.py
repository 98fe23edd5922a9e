"""``ControllerChannel`` finds the active controller, over real connections on loopback."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from kraftjbod.broker.cluster.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    ForeignMetadataError,
    NotControllerError,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId, Uuid
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.core.node_config import Voter
from kraftjbod.protocol.rpc_config_messages import (
    ListPartitionReassignmentsRequestRpc,
    ListPartitionReassignmentsResponseRpc,
)
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    CreatedTopic,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    NewTopic,
    RpcRequest,
    RpcResponse,
)
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, FetchMetadataResponse
from tests.unit.broker.scripted_controller import (
    RealClock,
    ScriptedController,
    channel_to,
    serving,
)

ASK = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1))
POLL = FetchMetadataRequest(broker_id=BrokerId(1), fetch_offset=0, max_wait_ms=60_000, max_bytes=1)
PATIENT_MS = 60_000


def ids(request: RpcRequest) -> RpcResponse:
    if isinstance(request, FetchMetadataRequest):
        return FetchMetadataResponse(high_watermark=9)
    if isinstance(request, ListPartitionReassignmentsRequestRpc):
        return ListPartitionReassignmentsResponseRpc(partitions=())
    return AllocateProducerIdsResponse(producer_id_start=1_000, producer_id_count=1_000)


def standby(request: RpcRequest) -> RpcResponse:
    raise NotControllerError("not me")


def named(*voters: Voter) -> FetchMetadataResponse:
    """Return a response of a voter that names the present voters."""
    texts = tuple(f"{one.node_id}@{one.host}:{one.port}" for one in voters)
    return FetchMetadataResponse(high_watermark=9, controllers=texts)


def unreachable() -> Voter:
    """A port of loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Voter(BrokerId(3001), "127.0.0.1", probe.getsockname()[1])


async def test_call_returns_the_response_type_of_the_request() -> None:
    controller = ScriptedController(ids)
    async with serving(controller), channel_to(controller.voter()) as channel:
        response = await channel.call(ASK, timeout_ms=PATIENT_MS)
        assert response.producer_id_start == 1_000
        assert str(controller.server.port) in repr(channel)


async def test_call_encodes_each_request_at_the_current_level() -> None:
    controller = ScriptedController(
        lambda _: BrokerHeartbeatResponse(
            is_caught_up=True, is_fenced=False, should_shut_down=False
        )
    )
    dead = DirectoryId(b"d" * 16)
    heartbeat = BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(1),
        current_metadata_offset=1,
        want_fence=False,
        want_shut_down=False,
        offline_log_dirs=(dead,),
        cordoned_log_dirs=(dead,),
    )
    levels = list(MetadataVersion)
    async with serving(controller):
        channel = ControllerChannel(
            addresses=[("127.0.0.1", controller.server.port)],
            clock=RealClock(),
            random_unit=lambda: 0.5,
            level=lambda: levels[len(controller.seen)],
        )
        for _ in levels:
            await channel.call(heartbeat, timeout_ms=PATIENT_MS)
        channel.close()
    said = [
        (request.offline_log_dirs, request.cordoned_log_dirs)
        for request in controller.seen
        if isinstance(request, BrokerHeartbeatRequest)
    ]
    assert said == [((), None), ((dead,), None), *[((dead,), (dead,))] * (len(levels) - 2)]


async def test_call_finds_the_active_controller_and_stays_with_it() -> None:
    inactive, active = ScriptedController(standby), ScriptedController(ids)
    async with serving(inactive, active):
        voters = (inactive.voter(), unreachable(), active.voter())
        async with channel_to(*voters) as channel:
            await channel.call(ASK, timeout_ms=PATIENT_MS)
            await channel.call(ASK, timeout_ms=PATIENT_MS)
    assert (len(inactive.seen), len(active.seen)) == (1, 2)


async def test_call_skips_controller_that_refuses_this_host() -> None:
    def refuse(_: RpcRequest) -> RpcResponse:
        raise OperatingError("not from here", code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    first, second = ScriptedController(refuse), ScriptedController(ids)
    async with serving(first, second), channel_to(first.voter(), second.voter()) as channel:
        response = await channel.call(ASK, timeout_ms=PATIENT_MS)
        assert response.producer_id_start == 1_000


async def test_requests_skip_controller_of_another_log_and_fail_if_all_have_another() -> None:
    def refuse(_: RpcRequest) -> RpcResponse:
        raise ForeignMetadataError("another log")

    log_id = Uuid(bytes(15) + b"1")
    first, second = ScriptedController(refuse), ScriptedController(ids)
    async with serving(first, second):
        channel = ControllerChannel(
            addresses=[("127.0.0.1", one.server.port) for one in (first, second)],
            clock=RealClock(),
            random_unit=lambda: 0.5,
            log_id=lambda: log_id,
        )
        response = await channel.forward(ASK, timeout_ms=PATIENT_MS)
        assert response.producer_id_start == 1_000
        assert [request.metadata_log_id for request in (*first.seen, *second.seen)] == [log_id] * 2
        second.answer = refuse
        with pytest.raises(OperatingError, match="another log") as raised:
            await channel.call(ASK, timeout_ms=PATIENT_MS)
        assert raised.value.code is ErrorCode.FOREIGN_METADATA
        channel.close()


async def test_forward_outlasts_refusals_by_one_controller_of_another_log() -> None:
    """One voter was formatted as a separate quorum, and the other two elect a leader."""

    def refuse(_: RpcRequest) -> RpcResponse:
        raise ForeignMetadataError("another log")

    mistaken, first, second = map(ScriptedController, (refuse, standby, standby))
    async with serving(mistaken, first, second):
        voters = [one.voter() for one in (mistaken, first, second)]
        async with channel_to(*voters) as channel:
            forwarding = asyncio.create_task(channel.forward(ASK, timeout_ms=PATIENT_MS))
            await mistaken.wait_seen(lambda seen: len(seen) > len(voters))
            second.answer = ids
            assert (await forwarding).producer_id_start == 1_000


@pytest.mark.parametrize("is_third_dead", [True, False], ids=["dead", "not active"])
async def test_metadata_poll_raises_foreign_metadata_at_its_deadline_if_a_majority_refuses(
    is_third_dead: bool,
) -> None:
    """Two voters lost their disks. One leads a new log, and the other answers like a follower."""

    def refuse(_: RpcRequest) -> RpcResponse:
        raise ForeignMetadataError("another log")

    leads, follows, third = map(ScriptedController, (refuse, standby, standby))
    async with serving(leads, follows, third):
        voters = [leads.voter(), follows.voter()]
        voters.append(unreachable() if is_third_dead else third.voter())
        async with channel_to(*voters, request_timeout_ms=500) as channel:
            poll = POLL.model_copy(update={"max_wait_ms": 0})
            with pytest.raises(OperatingError) as refused:
                await channel.fetch_metadata(poll)
            assert refused.value.code is ErrorCode.FOREIGN_METADATA


async def test_call_repeats_until_a_controller_becomes_active() -> None:
    controller = ScriptedController(standby)
    async with serving(controller), channel_to(controller.voter()) as channel:
        calling = asyncio.create_task(channel.call(ASK, timeout_ms=PATIENT_MS))
        await controller.wait_seen(lambda seen: len(seen) >= 3)
        controller.answer = ids
        assert (await calling).producer_id_count == 1_000


async def test_call_timeout_raises_the_last_error_or_request_timed_out() -> None:
    controller = ScriptedController(standby)
    async with serving(controller), channel_to(controller.voter()) as channel:
        with pytest.raises(OperatingError) as caught:
            await channel.call(ASK, timeout_ms=30)
    assert caught.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
    async with channel_to(unreachable()) as channel:
        with pytest.raises((ConnectionLostError, RequestTimedOutError)):
            await channel.call(ASK, timeout_ms=30)


async def test_forward_without_a_reachable_controller_raises_request_timed_out() -> None:
    """BROKER_NOT_AVAILABLE, the code of a refused connection, is final for Kafka's clients."""
    async with channel_to(unreachable()) as channel:
        with pytest.raises(RequestTimedOutError, match="no controller could be reached"):
            await channel.forward(ASK, timeout_ms=30)


async def test_refused_call_is_not_repeated() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        raise OperatingError("too old", code=ErrorCode.STALE_BROKER_EPOCH)

    controller = ScriptedController(refuse)
    async with serving(controller), channel_to(controller.voter()) as channel:
        with pytest.raises(OperatingError) as caught:
            await channel.call(ASK, timeout_ms=PATIENT_MS)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH and len(controller.seen) == 1


async def test_unanswered_call_is_not_repeated() -> None:
    controller = ScriptedController(ids)
    controller.may_answer.clear()
    async with serving(controller), channel_to(controller.voter()) as channel:
        with pytest.raises(RequestTimedOutError):
            await channel.call(ASK, timeout_ms=500)
    assert len(controller.seen) == 1


async def test_metadata_poll_switches_controller_when_a_call_is_not_answered() -> None:
    """The host of the controller lost power: its connections stay silent, and a poll waits long."""
    dead, active = ScriptedController(ids), ScriptedController(ids)
    dead.may_answer.clear()
    async with serving(dead, active), channel_to(dead.voter(), active.voter()) as channel:
        polling = asyncio.create_task(channel.fetch_metadata(POLL))
        await dead.wait_seen(lambda seen: POLL in seen)
        with pytest.raises(RequestTimedOutError):
            await channel.call(ASK, timeout_ms=20)
        assert (await polling).high_watermark == 9
        assert active.seen == [POLL]


async def test_pending_requests_switch_from_a_silent_controller_to_the_newly_active_one() -> None:
    """The process is paused, or its host is gone: no connection closes, and another one is
    elected."""
    still, other = ScriptedController(ids), ScriptedController(standby)
    async with serving(still, other):
        channel = ControllerChannel(
            addresses=[(one.host, one.port) for one in (still.voter(), other.voter())],
            clock=RealClock(),
            random_unit=lambda: 0.5,
            request_timeout_ms=100,
        )
        await channel.call(ASK, timeout_ms=PATIENT_MS)
        still.may_answer.clear()
        polling = asyncio.create_task(channel.fetch_metadata(POLL))
        asking = asyncio.create_task(channel.forward(ASK, timeout_ms=PATIENT_MS))
        await still.wait_seen(lambda seen: len(seen) == 3)
        # Without an active controller, pending requests continue to wait.
        await other.wait_seen(lambda seen: len(seen) >= 2)
        assert not asking.done()
        other.answer = ids
        assert (await asking).producer_id_count == 1_000
        assert (await polling).high_watermark == 9
        assert {type(request) for request in other.seen} >= {type(ASK), type(POLL)}
        channel.close()


async def test_metadata_poll_may_use_a_follower_but_other_calls_do_not() -> None:
    def only_polls_fail(request: RpcRequest) -> RpcResponse:
        return standby(request) if request == POLL else ids(request)

    def follows(request: RpcRequest) -> RpcResponse:
        if request != POLL:
            return standby(request)
        return FetchMetadataResponse(high_watermark=5, is_active=False)

    active, other = ScriptedController(only_polls_fail), ScriptedController(follows)
    async with serving(active, other), channel_to(active.voter(), other.voter()) as channel:
        for _ in range(2):
            assert (await channel.fetch_metadata(POLL)).high_watermark == 5
        assert active.seen == [POLL], "the next poll uses the controller that answered"
        assert (await channel.call(ASK, timeout_ms=PATIENT_MS)).producer_id_count == 1_000
        assert other.seen == [POLL, POLL]
        active.answer = ids
        assert (await channel.fetch_metadata(POLL)).high_watermark == 9
        assert other.seen == [POLL, POLL], "the active controller is preferred"


async def test_forward_retries_with_an_older_version_at_an_older_controller() -> None:
    """No client could create a topic while brokers were upgraded before their controllers."""
    created = CreateTopicsResponseRpc(topics=(CreatedTopic(name="t"),))

    def older(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, CreateTopicsRequestRpc)
        if request.topic_ids:
            raise OperatingError("version 1 is not served here", code=ErrorCode.UNSUPPORTED_VERSION)
        return created

    wanted = CreateTopicsRequestRpc(
        topics=(NewTopic(name="t", num_partitions=1, replication_factor=1),),
        topic_ids=(TopicId(b"t" * 16),),
    )
    controller = ScriptedController(older)
    async with serving(controller), channel_to(controller.voter()) as channel:
        assert await channel.forward(wanted, timeout_ms=PATIENT_MS) == created
        controller.answer = _supports_nothing
        with pytest.raises(OperatingError) as refused:
            await channel.forward(wanted, timeout_ms=PATIENT_MS)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def _supports_nothing(_request: RpcRequest) -> RpcResponse:
    raise OperatingError("what?", code=ErrorCode.UNSUPPORTED_VERSION)


async def test_pending_forward_leaves_a_silent_controller_when_another_is_elected() -> None:
    """The switch must not take a second request timeout, which is more than this call has."""
    still, other = ScriptedController(ids), ScriptedController(standby)
    async with serving(still, other):
        channel = ControllerChannel(
            addresses=[(one.host, one.port) for one in (still.voter(), other.voter())],
            clock=RealClock(),
            random_unit=lambda: 0.5,
            request_timeout_ms=2_000,
        )
        still.may_answer.clear()
        asking = asyncio.create_task(channel.forward(ASK, timeout_ms=1_900))
        await other.wait_seen(lambda seen: len(seen) == 1)
        other.answer = ids
        assert (await asking).producer_id_count == 1_000
        channel.close()


async def test_call_timeout_error_names_the_whole_time_and_the_previous_failure() -> None:
    """The last attempt may have only a few ms, which said nothing about the controller."""

    def moved(_: RpcRequest) -> RpcResponse:
        silent.may_answer.clear()
        raise NotControllerError("another one leads")

    moving, silent = ScriptedController(moved), ScriptedController(standby)
    async with serving(moving, silent), channel_to(moving.voter(), silent.voter()) as channel:
        with pytest.raises(RequestTimedOutError) as timed_out:
            await channel.call(ASK, timeout_ms=300)
    assert "had no response within 300 ms" in timed_out.value.message
    assert f"127.0.0.1:{silent.voter().port} in " in timed_out.value.message
    assert timed_out.value.message.endswith("; before it: another one leads")


async def test_pending_forward_to_a_removed_voter_still_receives_its_response() -> None:
    """A leader that removes itself: brokers learn the new voters before its response arrives."""
    leaving, staying = ScriptedController(ids), ScriptedController(standby)
    async with serving(leaving, staying), channel_to(staying.voter()) as channel:
        voters = [leaving.voter(), staying.voter(3001)]
        staying.answer = lambda _: named(*voters)
        await channel.fetch_metadata(POLL)
        staying.answer = standby
        leaving.may_answer.clear()
        asking = asyncio.create_task(channel.forward(ASK, timeout_ms=5_000))
        await leaving.wait_seen(lambda seen: ASK in seen)
        staying.answer = lambda _: named(staying.voter(3001))
        await channel.fetch_metadata(POLL)
        leaving.may_answer.set()
        assert (await asking).producer_id_count == 1_000
        assert leaving.seen == [ASK], "the request was not repeated"


async def test_metadata_poll_uses_its_own_connection() -> None:
    controller = ScriptedController(ids)
    async with serving(controller), channel_to(controller.voter()) as channel:
        await channel.call(ASK, timeout_ms=PATIENT_MS)
        assert (await channel.fetch_metadata(POLL)).high_watermark == 9
        assert controller.server.connection_count == 2
        assert channel.kraft_version == 0
        voter = f"3000@127.0.0.1:{controller.server.port}"
        controller.answer = lambda _: FetchMetadataResponse(high_watermark=9, controllers=(voter,))
        await channel.fetch_metadata(POLL)
        assert channel.kraft_version == 1, "the log names its voters"


async def test_on_control_lost_runs_only_for_the_control_connection() -> None:
    controller = ScriptedController(ids)
    lost: list[None] = []
    async with channel_to(unreachable()) as other:
        other.on_control_lost = lambda: lost.append(None)
        with pytest.raises((ConnectionLostError, RequestTimedOutError)):
            await other.call(ASK, timeout_ms=30)
    assert lost == [], "no control connection existed"
    async with AsyncExitStack() as server:
        await server.enter_async_context(serving(controller))
        async with channel_to(controller.voter()) as channel:
            channel.on_control_lost = lambda: lost.append(None)
            await channel.call(ASK, timeout_ms=PATIENT_MS)
            await channel.fetch_metadata(POLL)
            await server.aclose()
            while not lost:
                await asyncio.sleep(0)
    assert lost == [None], "the metadata connection and the channel closed as well"


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(-5, 1), (0, 1), (700, 700), (10**9, 60_000)])
def test_forward_timeout_is_that_of_the_client_within_limits(
    asked_ms: int, granted_ms: int
) -> None:
    assert forward_timeout_ms(asked_ms) == granted_ms
