"""The comparison of replicas in small frames."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.audit import replica_frames as replicas
from kraftjbod.spark.tables.schemas import AUDIT_DIFFERENCES, REPLICA_BATCHES, REPLICA_RANGES

T, LEADER = "t", 1


def batch(broker: int, base: int, last: int, crc: int = 0xC, **more: Any) -> tuple[Any, ...]:
    row = {
        "topic": T,
        "partition": 0,
        "broker_id": broker,
        "path": f"/d{broker}",
        "is_leader": broker == LEADER,
        "base_offset": base,
        "last_offset": last,
        "finding": None,
        "detail": None,
        "record_count": last - base + 1,
        "crc": crc,
        "is_control": False,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        **more,
    }
    return tuple(row[name] for name in REPLICA_BATCHES.fieldNames())


def batches(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), REPLICA_BATCHES)


def found(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows: difference, offset, broker, producer, sequence, detail."""
    made = [(d, T, 0, o, b, w, n, text) for d, o, b, w, n, text in rows]
    return spark.createDataFrame(made, AUDIT_DIFFERENCES)


def test_replica_differences_compare_followers_with_their_leader(spark: SparkSession) -> None:
    held = batches(
        spark,
        batch(1, 0, 4),
        batch(1, 5, 9, crc=0xA),
        batch(1, 10, 19),
        batch(2, 0, 4),
        batch(2, 5, 9, crc=0xB),
        batch(2, 10, 14),
        batch(2, 15, 19),
        batch(3, 0, 4),
        batch(3, 5, 9, crc=0xA),
    )
    ranges = [(T, 0, broker, f"/d{broker}", broker == LEADER, 0, 20) for broker in (1, 2, 3)]
    got = replicas.replica_differences(held, spark.createDataFrame(ranges, REPLICA_RANGES))
    none = "no batch that begins here"
    rows = [
        (
            5,
            2,
            "/d2: 5 records up to offset 9 with CRC 0000000b; the leader has "
            "5 records up to offset 9 with CRC 0000000a",
        ),
        (
            10,
            2,
            "/d2: 5 records up to offset 14 with CRC 0000000c; the leader has "
            "10 records up to offset 19 with CRC 0000000c",
        ),
        (15, 2, f"/d2: 5 records up to offset 19 with CRC 0000000c; the leader has {none}"),
        (10, 3, f"/d3: {none}; the leader has 10 records up to offset 19 with CRC 0000000c"),
    ]
    made = [("replica_differs", offset, broker, None, None, text) for offset, broker, text in rows]
    assertDataFrameEqual(got, found(spark, *made))


def test_replica_differences_exclude_damaged_and_unread_batches(spark: SparkSession) -> None:
    held = batches(
        spark,
        batch(1, 0, 4),
        batch(1, 5, 9, finding="damaged", detail="CRC 1, computed 2"),
        batch(1, 10, 19),
        batch(2, 0, 4, finding="damaged", detail="the broker says CORRUPT_MESSAGE"),
        batch(2, 5, 9),
        batch(2, 10, 19),
        batch(3, 0, 19, finding="unread", detail="broker 3 does not answer"),
    )
    ranges = [(T, 0, broker, f"/d{broker}", broker == LEADER, 0, 20) for broker in (1, 2, 3)]
    got = replicas.replica_differences(held, spark.createDataFrame(ranges, REPLICA_RANGES))
    assertDataFrameEqual(got, found(spark))
    assertDataFrameEqual(
        replicas.damaged_batches(held),
        found(
            spark,
            ("bad_crc", 5, 1, None, None, "/d1: CRC 1, computed 2"),
            ("bad_crc", 0, 2, None, None, "/d2: the broker says CORRUPT_MESSAGE"),
        ),
    )


def test_producer_order_accepts_only_rising_sequences(spark: SparkSession) -> None:
    def sent(base: int, last: int, sequence: int, *, epoch: int = 0, broker: int = 1) -> Any:
        more = {"producer_id": 7, "producer_epoch": epoch, "base_sequence": sequence}
        return batch(broker, base, last, **more)

    top = 2**31 - 1
    held = batches(
        spark,
        sent(0, 4, 0),
        sent(5, 9, 5),
        sent(10, 14, 5),
        sent(10, 14, 5, broker=2),
        sent(15, 19, 30),
        sent(20, 24, 0, epoch=1),
        sent(25, 26, top - 1, epoch=2),
        sent(27, 28, 0, epoch=2),
        sent(29, 30, top, epoch=2),
        batch(1, 31, 40),
        batch(1, 41, 50),
    )
    assertDataFrameEqual(
        replicas.repeated_sequences(held),
        found(
            spark,
            ("duplicate", 10, None, "id 7, epoch 0", 5, "sequence 10 was due"),
            ("duplicate", 29, None, "id 7, epoch 2", top, "sequence 2 was due"),
        ),
    )


def test_control_offsets_come_from_leaders_only(spark: SparkSession) -> None:
    held = batches(
        spark,
        batch(1, 0, 4),
        batch(1, 5, 6, is_control=True),
        batch(2, 7, 7, is_control=True),
    )
    got = replicas.control_offsets(held)
    assertDataFrameEqual(got, [(T, 0, 5), (T, 0, 6)])
