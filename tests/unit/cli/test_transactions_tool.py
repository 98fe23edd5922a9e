"""``kraftjbod-transactions``: Kafka's columns, hanging transactions and aborts."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kraftjbod.cli.transactions_tool import main
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    FindCoordinatorResponse,
    ListTransactionsResponse,
    WriteTxnMarkersResponse,
)
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker, invoke

HOUR_MS = 3_600_000


class Coordinator(MiniBroker):
    """A broker with two open transactions in partition 0 of ``t``.

    The one of producer 5 is two hours old and belongs to "ours". The one of producer 6 is one hour
    old, and no coordinator knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.create("t", 2)
        self.now_ms = time.time_ns() // 1_000_000
        self.filters: list[Any] = []
        self.markers: list[Any] = []
        self.fenced: list[str] = []

    def _find_coordinator(self, body: Any, code: int) -> Any:
        assert body.key_type == 1
        return FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(key=key, node_id=BROKER_ID, error_code=code)
                for key in body.coordinator_keys
            ]
        )

    def _list_transactions(self, body: Any, code: int) -> Any:
        self.filters.append((body.transactional_id_pattern, body.duration_filter))
        kind = ListTransactionsResponse
        one = kind.TransactionState(
            transactional_id="ours", producer_id=5, transaction_state="Ongoing"
        )
        return kind(error_code=code, transaction_states=[one])

    def _describe_transactions(self, body: Any, code: int) -> Any:
        (name,) = body.transactional_ids
        kind = DescribeTransactionsResponse
        if name != "ours":
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        one = kind.TransactionState(
            error_code=code,
            transactional_id=name,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=self.now_ms - HOUR_MS,
            producer_id=5,
            topics=[kind.TopicData(topic="t", partitions=[1, 0])],
        )
        return kind(transaction_states=[one])

    def _describe_producers(self, body: Any, code: int) -> Any:
        kind = DescribeProducersResponse

        def producers(index: int) -> list[Any]:
            open_ones = [(5, self.now_ms - 2 * HOUR_MS, 3), (6, self.now_ms - HOUR_MS, 8)]
            idle = (9, self.now_ms - HOUR_MS, -1)
            return [
                kind.ProducerState(
                    producer_id=producer_id,
                    producer_epoch=2,
                    last_sequence=4,
                    last_timestamp=at_ms,
                    coordinator_epoch=-1,
                    current_txn_start_offset=start,
                )
                for producer_id, at_ms, start in [*(open_ones if index == 0 else []), idle]
            ]

        return kind(
            topics=[
                kind.TopicResponse(
                    name=topic.name,
                    partitions=[
                        kind.PartitionResponse(
                            partition_index=index,
                            error_code=code,
                            active_producers=producers(index),
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in body.topics
            ]
        )

    def _write_txn_markers(self, body: Any, code: int) -> Any:
        kind = WriteTxnMarkersResponse
        (marker,) = body.markers
        self.markers.append(marker)
        part = kind.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
        topic = kind.WritableTxnMarkerTopicResult(name="t", partitions=[part])
        return kind(
            markers=[kind.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[topic])]
        )

    def _init_producer_id(self, body: Any, code: int) -> Any:
        self.fenced += [] if code else [body.transactional_id]
        return super()._init_producer_id(body, code)


@asynccontextmanager
async def coordinator() -> AsyncIterator[Coordinator]:
    broker = Coordinator()
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close(timeout_ms=1000)


async def asked(broker: MiniBroker, *words: str) -> Any:
    return await invoke(main, "--bootstrap-server", broker.address, *words)


async def answered(broker: MiniBroker, *words: str) -> Any:
    done = await asked(broker, *words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


async def test_transactions_list_with_invalid_pattern_fails_with_the_pattern() -> None:
    async with coordinator() as broker:
        broker.fail_next["ListTransactions"].append(ErrorCode.INVALID_REGULAR_EXPRESSION)
        listed = await asked(broker, "list", "--transactional-id-pattern", "o(")
        assert listed.exit_code == 1
        assert listed.stderr == "error: 'o(': INVALID_REGULAR_EXPRESSION\n"


async def test_list_and_describe_print_kafkas_columns_and_json() -> None:
    async with coordinator() as broker:
        listed = await asked(broker, "list", "--transactional-id-pattern", "o.*")
        assert listed.stdout == (
            "TransactionalId\tCoordinator\tProducerId\tTransactionState\t\n"
            "ours           \t7          \t5         \tOngoing         \t\n"
        )
        await asked(broker, "list", "--duration-filter", "7")
        assert broker.filters == [("o.*", -1), (None, 7)]
        described = await asked(broker, "describe", "--transactional-id", "ours")
        assert described.stdout.splitlines()[1].split()[-1] == "t-0,t-1"
        document = await answered(broker, "describe", "--transactional-id", "ours")
        assert (document["coordinator"], document["producerId"]) == (7, 5)
        assert document["partitions"] == [
            {"topic": "t", "partition": 0},
            {"topic": "t", "partition": 1},
        ]
        gone = await asked(broker, "describe", "--transactional-id", "gone")
        assert (gone.exit_code, gone.stderr) == (1, "error: transactional id gone is not known\n")


async def test_describe_producers_prints_producers_of_partition() -> None:
    async with coordinator() as broker:
        shown = await asked(broker, "describe-producers", "--topic", "t", "--partition", "0")
        rows = [line.split() for line in shown.stdout.splitlines()]
        assert rows[0][-1] == "CurrentTransactionStartOffset"
        assert [(row[0], row[-1]) for row in rows[1:]] == [("5", "3"), ("6", "8"), ("9", "None")]
        broker.fail_next["DescribeProducers"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        refused = await asked(broker, "describe-producers", "--topic", "t", "--partition", "0")
        assert refused.exit_code == 1 and "TOPIC_AUTHORIZATION_FAILED" in refused.stderr


async def test_find_hanging_lists_transactions_unknown_to_coordinator() -> None:
    async with coordinator() as broker:
        found = (await answered(broker, "find-hanging", "--topic", "t"))["hanging"]
        assert [(one["producerId"], one["startOffset"]) for one in found] == [(6, 8)]
        assert found[0]["durationMinutes"] == 60
        young = ("find-hanging", "--broker-id", "7", "--max-transaction-timeout", "61")
        assert (await answered(broker, *young))["hanging"] == []


async def test_abort_sends_marker_with_known_or_given_epochs() -> None:
    where = ("abort", "--topic", "t", "--partition", "0")
    async with coordinator() as broker:
        broker.fail_next["WriteTxnMarkers"] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        done = await asked(broker, *where, "--start-offset", "8")
        assert (done.exit_code, done.stdout) == (0, "")
        ids = ("--producer-id", "3", "--producer-epoch", "1", "--coordinator-epoch", "4")
        await asked(broker, *where, *ids)
        sent = [
            (one.producer_id, one.producer_epoch, one.coordinator_epoch, one.transaction_result)
            for one in broker.markers
        ]
        assert sent == [(6, 2, 0, False), (6, 2, 0, False), (3, 1, 4, False)]


async def test_abort_of_unknown_start_offset_fails() -> None:
    where = ("abort", "--topic", "t", "--partition", "0")
    async with coordinator() as broker:
        nothing = await asked(broker, *where, "--start-offset", "7")
        assert nothing.exit_code == 1
        assert "Could not find any open transactions starting at offset 7" in nothing.stderr


async def test_force_terminate_retries_during_concurrent_transaction() -> None:
    async with coordinator() as broker:
        broker.fail_next["InitProducerId"] = [ErrorCode.CONCURRENT_TRANSACTIONS]
        done = await asked(broker, "forceTerminateTransaction", "--transactionalId", "ours")
        assert (done.exit_code, broker.fenced) == (0, ["ours"])


@pytest.mark.parametrize(
    "words",
    [
        ("find-hanging",),
        ("find-hanging", "--broker-id", "7", "--partition", "0"),
        ("abort", "--topic", "t", "--partition", "0"),
        ("abort", "--topic", "t", "--partition", "0", "--producer-id", "5"),
        ("describe-producers", "--topic", "t"),
    ],
)
async def test_transactions_tool_with_wrong_options_exits_with_2(words: tuple[str, ...]) -> None:
    done = await invoke(main, "--bootstrap-server", "127.0.0.1:1", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
