"""``ClusterClient``: bootstrap servers, metadata, retries and lost connections."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, parse_bootstrap
from kraftjbod.core.errors import ConfigError, ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.protocol.messages import DescribeLogDirsRequest, UpdateFeaturesRequest
from tests.unit.cli.mini_broker import BROKER_ID, mini_broker

UNREACHABLE = "127.0.0.1:1"


def test_parse_bootstrap_accepts_hosts_with_and_without_port() -> None:
    assert parse_bootstrap("a:1, b,[::1]:3") == [("a", 1), ("b", 9092), ("::1", 3)]


@pytest.mark.parametrize("text", ["", " , ", "a:x", ":9"])
def test_parse_bootstrap_rejects_malformed_server_lists(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bootstrap(text)


def test_kafka_error_with_unknown_code_shows_the_number() -> None:
    assert "Kafka error 999" in str(kafka_error(999, "topic t"))
    assert kafka_error(36, "topic t").code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_refresh_metadata_uses_first_server_that_answers() -> None:
    async with mini_broker() as broker, ClusterClient(f"{UNREACHABLE},{broker.address}") as client:
        broker.create("t", 2)
        metadata = await client.refresh_metadata()
        assert list(metadata.brokers) == [BROKER_ID]
        assert metadata.leader("t", 1) == BROKER_ID
        assert metadata.topic("t").partitions[0].offline_replicas == (8,)


async def test_refresh_metadata_keeps_newer_leader_epoch_than_response() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        broker.topics["t"].leader_epoch = 5
        await client.refresh_metadata()
        broker.topics["t"].leader_epoch = 4
        assert (await client.refresh_metadata()).topic("t").partitions[1].leader_epoch == 5
        broker.create("t", 2)
        assert (await client.refresh_metadata()).topic("t").partitions[1].leader_epoch == 0


async def test_metadata_leader_distinguishes_missing_partitions_from_leaderless_ones() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        metadata = await client.refresh_metadata(["t", "nope"])
        for topic, partition in (("nope", 0), ("t", 1), ("other", 0)):
            with pytest.raises(OperatingError) as e:
                metadata.leader(topic, partition)
            assert e.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.fail_next["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
        with pytest.raises(OperatingError) as e:
            (await client.refresh_metadata()).leader("t", 0)
        assert e.value.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_retry_refreshes_metadata_after_retriable_errors() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        outcomes: list[OperatingError | None] = [
            OperatingError(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ConnectionLostError("gone"),
            None,
        ]

        async def attempt() -> str:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome
            return "done"

        assert await client.retry(attempt) == "done"
        assert broker.asked.count("Metadata") == 2


async def test_retry_raises_other_errors_after_one_attempt_and_no_refresh() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            raise OperatingError("no", code=ErrorCode.INVALID_REQUEST)

        with pytest.raises(OperatingError, match="no"):
            await client.retry(attempt)
        assert (attempts, broker.asked) == (1, [])


async def test_retry_on_unreachable_cluster_raises_connection_lost_with_address() -> None:
    async with ClusterClient(UNREACHABLE, retry_timeout_ms=1) as client:
        with pytest.raises(ConnectionLostError, match=UNREACHABLE):
            await client.retry(client.refresh_metadata)


async def test_request_to_broker_missing_in_metadata_raises_connection_lost() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        with pytest.raises(ConnectionLostError, match="broker 99"):
            await client.request(99, DescribeLogDirsRequest(topics=None))


async def test_client_reconnects_after_lost_connection() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        await broker.server.close(timeout_ms=0)
        with pytest.raises(ConnectionLostError):
            await client.refresh_metadata()
        await broker.start_again()
        assert await client.refresh_metadata() == client.metadata


async def test_request_controller_is_not_sent_to_broker_with_older_version() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        body = UpdateFeaturesRequest(validate_only=True)
        with pytest.raises(OperatingError, match="UpdateFeatures version 99 is needed") as e:
            await client.request_controller(body, min_version=99)
        assert e.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "UpdateFeatures" not in broker.asked


async def test_retry_asks_broker_with_broken_connection_last() -> None:
    """That broker may hang, and a connection to it would then wait until its timeout."""
    async with mini_broker() as first, mini_broker() as second:
        servers = f"{first.address},{second.address}"
        async with ClusterClient(servers) as client:
            await client.refresh_metadata()
            host, port = parse_bootstrap(first.address)[0]
            before = client.open_connections
            await first.server.close(timeout_ms=0)
            while client.open_connections == before:
                await asyncio.sleep(0)
            with socket.create_server((host, port)) as silent:
                silent.setblocking(False)
                await client.retry(client.refresh_metadata)
                with pytest.raises(BlockingIOError):
                    silent.accept()
            assert "Metadata" in second.asked
