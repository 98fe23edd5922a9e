"""``SampleEmitter``: rounds of storage samples, dropped samples, and the telemetry topic."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.loop.timing import Deadline
from kraftjbod.protocol.record_batch import Compression, read_header
from kraftjbod.protocol.records import read_records
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    RpcRequest,
    RpcResponse,
)
from kraftjbod.protocol.telemetry.storage_telemetry import TOPIC
from tests.unit.broker.broker_rig import (
    BrokerRig,
    accept,
    brokers,
    fetch,
    only,
    partition,
    topic,
)
from tests.unit.broker.gates import settle, until
from tests.unit.broker.impaired_dirs import answer, stall
from tests.unit.broker.scripted_controller import RealClock

ID = TopicId(b"s" * 16)
#: Short intervals between rounds.
HURRY = {
    "storage_telemetry_log_dir_interval_ms": "100",
    "storage_telemetry_replica_interval_ms": "300",
    "storage_telemetry_topic_replication_factor": "1",
}
#: A replication factor of 3 with two brokers, and replicas that are sampled once.
PATIENT = {
    **HURRY,
    "storage_telemetry_topic_replication_factor": "3",
    "storage_telemetry_replica_interval_ms": "3600000",
}


async def round_of(rig: BrokerRig, *, with_replicas: bool = False, ms: int = 20_000) -> bool:
    deadline = Deadline.after(RealClock().now_ms(), ms)
    return await rig.parts.telemetry.round(deadline, whole=with_replicas)


async def lead_topic(rig: BrokerRig, **more: Any) -> None:
    await rig.follow(topic(TOPIC, ID), partition(topic_id=ID, **more))


async def records(rig: BrokerRig) -> list[dict[str, Any]]:
    """All records of the topic's only partition."""
    found: list[dict[str, Any]] = []
    handle = rig.logs.get(TopicPartition(TOPIC, 0))
    assert handle is not None
    while len(found) < handle.log_end_offset:
        data = only(await rig.ask(fetch(len(found), tp=TopicPartition(TOPIC, 0)), 12)).records
        assert read_header(data).compression == Compression.GZIP
        found += [json.loads(record.value or b"") for record in read_records(data)]
    return found


def figures(rig: BrokerRig) -> tuple[float, float]:
    """The numbers of records sent and dropped."""
    snapshot = rig.around.metrics.snapshot()
    return (
        snapshot.get("StorageTelemetrySentTotal", 0),
        snapshot.get("StorageTelemetryDroppedTotal", 0),
    )


def creator(code: ErrorCode = ErrorCode.NONE) -> Any:
    def answering(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreateTopicsRequestRpc):
            return accept(request)
        (wanted,) = request.topics
        created = CreatedTopic(
            name=wanted.name, error_code=code, error_message="refused by the test"
        )
        return CreateTopicsResponseRpc(topics=(created,))

    return answering


def requested_factors(rig: BrokerRig) -> list[int]:
    """The replication factors of all requests to create the topic."""
    return [
        request.topics[0].replication_factor
        for request in rig.controller.seen
        if isinstance(request, CreateTopicsRequestRpc)
    ]


# --- samples that are sent -----------------------------------------------------------------------


async def test_round_sends_samples_of_directories_and_replicas() -> None:
    async with brokers(broker_rack="r9") as (rig,):
        await lead_topic(rig)
        assert await round_of(rig, with_replicas=True)
        found = await records(rig)
        assert [(r["kind"], r.get("path")) for r in found] == [
            ("log_dir", "/d1"),
            ("log_dir", "/d2"),
            ("replica", "/d1"),
        ]
        incarnation = str(rig.parts.identity.incarnation_id)
        for record in found:
            assert (record["broker_id"], record["rack"]) == (1, "r9")
            assert record["incarnation"] == incarnation
            assert record["cluster_id"] == rig.parts.cache.cluster_id
        assert figures(rig) == (3, 0)


async def test_round_with_many_replicas_sends_a_sample_of_each() -> None:
    async with brokers() as (rig,):
        await lead_topic(rig)
        await rig.follow(topic(), *(partition(index) for index in range(450)))
        await round_of(rig, with_replicas=True)
        found = await records(rig)
        assert figures(rig) == (453, 0)
        named = [(r["topic"], r["partition"]) for r in found if r["kind"] == "replica"]
        assert sorted(named) == sorted([(TOPIC, 0), *(("t", index) for index in range(450))])


async def test_samples_of_one_broker_are_in_one_partition() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), *(partition(i, topic_id=ID) for i in range(3)))
        for _ in range(2):
            await round_of(rig)
        ends = [rig.logs.get(TopicPartition(TOPIC, index)).log_end_offset for index in range(3)]
        assert ends == [0, 4, 0]


async def test_rounds_run_periodically_and_sample_replicas_less_often() -> None:
    async with brokers(**HURRY) as (rig,):
        await lead_topic(rig)
        running = rig.tasks.start(rig.parts.telemetry.run_emitter(), "telemetry")
        await until(lambda: figures(rig)[0] >= 17)
        running.cancel()
        kinds = [record["kind"] for record in await records(rig)]
        dirs = ["log_dir"] * 2
        assert kinds[:5] == [*dirs, "replica", *dirs]
        assert 2 <= kinds.count("replica") < kinds.count("log_dir") / 2


async def test_emitter_waiting_for_a_stalled_directory_can_be_cancelled() -> None:
    async with brokers(**HURRY) as (rig,):
        await lead_topic(rig)
        stall(rig.dirs[0])
        running = rig.tasks.start(rig.parts.telemetry.run_emitter(), "telemetry")
        await settle()
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()


# --- samples that are dropped --------------------------------------------------------------------


async def test_samples_without_a_timely_append_are_dropped_and_logged_once() -> None:
    async with brokers() as (rig,):
        await lead_topic(rig)
        with capture_logs() as lines:
            stall(rig.dirs[0])
            for _ in range(3):
                assert await round_of(rig, with_replicas=True, ms=40)
            assert figures(rig) == (0, 9)
            await answer(rig.dirs[0])
            for _ in range(2):
                await round_of(rig)
        found = [line["event"] for line in lines if line["event"].startswith("samples_")]
        assert found == ["samples_dropped", "samples_sent_again"]
        assert figures(rig) == (4, 9)


async def test_unexpected_error_in_a_round_is_logged_and_rounds_continue(monkeypatch: Any) -> None:
    async with brokers(**HURRY) as (rig,):
        await lead_topic(rig)
        monitor, is_slow = rig.parts.monitor, rig.parts.monitor.is_slow
        monkeypatch.setattr(monitor, "is_slow", lambda _: 1 / 0)
        with capture_logs() as lines:
            rig.tasks.start(rig.parts.telemetry.run_emitter(), "telemetry")
            await until(lambda: lines)
            monkeypatch.setattr(monitor, "is_slow", is_slow)
            await until(lambda: figures(rig)[0])
        assert lines[0]["event"] == "samples_round_failed"
        assert isinstance(lines[0]["exc_info"], ZeroDivisionError)


# --- the topic ------------------------------------------------------------------------------------


async def test_round_creates_the_topic_and_sends_once_it_exists() -> None:
    async with brokers(answer=creator(), **HURRY) as (rig,):
        sending = asyncio.ensure_future(round_of(rig))
        await until(lambda: requested_factors(rig))
        await lead_topic(rig)
        assert await sending
        assert requested_factors(rig) == [1]
        assert figures(rig) == (2, 0)
        await round_of(rig)
        assert requested_factors(rig) == [1]


async def test_topic_created_by_another_broker_is_used() -> None:
    async with brokers(answer=creator(ErrorCode.TOPIC_ALREADY_EXISTS), **HURRY) as (rig,):
        sending = asyncio.ensure_future(round_of(rig))
        await until(lambda: requested_factors(rig))
        await lead_topic(rig)
        assert await sending
        assert figures(rig) == (2, 0)


async def test_topic_creation_waits_for_more_brokers_without_a_warning() -> None:
    async with brokers(2, answer=creator()) as (rig, _):
        with capture_logs() as lines:
            waited = [await round_of(rig, ms=20) for _ in range(3)]
        assert (waited, requested_factors(rig)) == ([False] * 3, [])
        assert [line for line in lines if line["log_level"] == "warning"] == []
        assert figures(rig) == (0, 6)
        assert await round_of(rig, ms=20)
        assert requested_factors(rig) == [2]


async def test_failed_topic_creation_is_logged_with_its_reason() -> None:
    refusal = creator(ErrorCode.INVALID_REPLICATION_FACTOR)
    async with brokers(3, answer=refusal) as (rig, *_):
        with capture_logs() as lines:
            for _ in range(4):
                await round_of(rig, ms=20)
        assert requested_factors(rig) == [3, 2]
        (warning,) = [line for line in lines if line["event"] == "samples_dropped"]
        assert warning["code"] == "INVALID_REPLICATION_FACTOR"
        assert warning["reason"] == "refused by the test"
        assert figures(rig) == (0, 8)


async def test_replica_samples_stay_due_until_the_topic_exists() -> None:
    async with brokers(2, answer=creator(), **PATIENT) as (rig, _):
        rig.tasks.start(rig.parts.telemetry.run_emitter(), "telemetry")
        await until(lambda: figures(rig)[1] >= 2)
        await lead_topic(rig)
        await until(lambda: figures(rig)[0] >= 3)
        assert [r["kind"] for r in (await records(rig))[:3]] == ["log_dir", "log_dir", "replica"]
