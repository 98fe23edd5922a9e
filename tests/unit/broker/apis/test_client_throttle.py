"""Produce and Fetch beyond a quota, over a real listener: throttle times and muted connections."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.core.loop import client_rates
from kraftjbod.metadata.records import ClientQuotaRecord
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import FetchRequest, MetadataRequest
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TIMEOUT_MS,
    BrokerRig,
    brokers,
    fetch,
    only,
    partition,
    produce,
    topic,
)

BY_NAME = 12
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
BURST_S = client_rates.BURST_S[PRODUCE]
#: Its debt takes longer than any test.
TINY = 1.0


def quota(key: str, value: float | None) -> ClientQuotaRecord:
    """The quota of each client id."""
    return ClientQuotaRecord(entity=(("client-id", None),), key=key, value=value)


async def ask(connection: KafkaConnection, body: Any) -> Any:
    return await connection.request(body, timeout_ms=TIMEOUT_MS, version=BY_NAME)


def in_session(request: FetchRequest, session_id: int, epoch: int) -> FetchRequest:
    request.session_id, request.session_epoch = session_id, epoch
    return request


async def connected(rig: BrokerRig, *records: ClientQuotaRecord) -> KafkaConnection:
    await rig.follow(topic(), partition(), *records)
    return await rig.connect()


async def is_muted(rig: BrokerRig, connection: KafkaConnection) -> bool:
    """Return whether a request on another connection is answered before one on ``connection``."""
    asked = asyncio.create_task(ask(connection, MetadataRequest(topics=[])))
    for _ in range(3):
        await rig.ask(MetadataRequest(topics=[]), BY_NAME)
    is_answered = asked.done()
    asked.cancel()
    return not is_answered


async def test_produce_beyond_the_quota_is_appended_and_mutes_the_connection() -> None:
    async with brokers() as (rig,):
        client = await connected(rig, quota(PRODUCE, TINY))
        sent = batch(3)
        response = await ask(client, produce(sent))
        assert only(response).error_code == 0
        debt_ms = (len(sent) - BURST_S) * 1000
        assert debt_ms - 10_000 < response.throttle_time_ms <= debt_ms
        assert await is_muted(rig, client)
        assert only(await rig.ask(fetch(), BY_NAME)).records == sent, "it has no quota"


async def test_produce_without_acks_beyond_the_quota_mutes_the_connection() -> None:
    async with brokers() as (rig,):
        client = await connected(rig, quota(PRODUCE, TINY))
        await ask(client, produce(batch(3), acks=0))
        while not only(await rig.ask(fetch(), BY_NAME)).records:
            await asyncio.sleep(0.01)
        assert await is_muted(rig, client)


async def test_fetch_beyond_the_quota_mutes_the_connection_and_followers_are_exempt() -> None:
    async with brokers() as (rig,):
        client = await connected(rig, quota(CONSUME, TINY))
        response = await ask(client, produce(batch(3)))
        assert response.throttle_time_ms == 0
        response = await ask(client, fetch())
        assert only(response).records, "one batch is always returned"
        assert response.throttle_time_ms > 0
        assert await is_muted(rig, client)
        follower, request = await rig.connect(), fetch()
        request.replica_id = 2
        assert (await ask(follower, request)).throttle_time_ms == 0
        assert not await is_muted(rig, follower)


async def test_fetch_returns_at_most_a_whole_burst() -> None:
    async with brokers() as (rig,):
        one = batch(1)
        client = await connected(rig, quota(CONSUME, float(len(one))))
        for _ in range(2 * BURST_S):
            await ask(client, produce(one))
        response = await ask(client, fetch())
        assert len(only(response).records) <= BURST_S * len(one)
        assert response.throttle_time_ms == 0
        response = await ask(client, fetch())
        assert response.throttle_time_ms > 0


async def test_fetch_while_the_client_waits_returns_nothing_on_another_connection() -> None:
    async with brokers() as (rig,):
        client = await connected(rig, quota(CONSUME, TINY))
        await ask(client, produce(batch(3)))
        wait_ms = (await ask(client, fetch())).throttle_time_ms
        other = await rig.connect()
        response = await ask(other, fetch())
        assert response.responses == [] and response.session_id == 0
        assert wait_ms - 10_000 < response.throttle_time_ms <= wait_ms, "no bytes are counted"
        assert await is_muted(rig, other)


async def test_incremental_fetch_while_the_client_waits_keeps_its_session() -> None:
    async with brokers() as (rig,):
        client = await connected(rig)
        opened = await ask(client, in_session(fetch(), 0, 0))
        assert opened.session_id and only(opened).error_code == 0
        await ask(client, produce(batch(3)))
        await rig.follow(quota(CONSUME, TINY))
        other = await rig.connect()
        assert (await ask(other, fetch())).throttle_time_ms > 0
        response = await ask(client, in_session(fetch(), opened.session_id, 1))
        assert (response.session_id, response.responses) == (opened.session_id, [])
        await rig.follow(quota(CONSUME, None))
        again = await ask(await rig.connect(), in_session(fetch(), opened.session_id, 2))
        assert only(again).records


async def test_mute_ends_and_the_waiting_request_is_answered() -> None:
    async with brokers() as (rig,):
        sent = batch(3)
        rate = len(sent)
        client = await connected(rig, quota(PRODUCE, float(rate)))
        for _ in range(BURST_S):
            assert (await ask(client, produce(sent))).throttle_time_ms == 0
        response = await ask(client, produce(sent))
        assert 0 < response.throttle_time_ms <= 1000
        assert (await ask(client, MetadataRequest(topics=[]))).topics == []


async def test_removed_quota_delays_no_further_request() -> None:
    async with brokers() as (rig,):
        client = await connected(rig, quota(PRODUCE, TINY))
        assert (await ask(client, produce(batch(3)))).throttle_time_ms > 0
        await rig.follow(quota(PRODUCE, None))
        assert (await rig.ask(produce(batch(3)), BY_NAME)).throttle_time_ms == 0
