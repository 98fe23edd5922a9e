"""FRAME. Compares replicas batch by batch: the batches at equal offsets, and their producers.

* Replicas are compared with the leader. A replica differs if it lacks a batch of the leader, has
  another batch at that offset, or has a batch that the leader lacks.
* Unread and damaged parts of a replica are reported as such and not compared.
* Each replica of a compacted topic is compacted independently, so only CRCs are checked there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kraftjbod.spark.audit.audit_frames import (
    GAP_STRETCH,
    PARTITION,
    STRETCH,
    all_of,
    cast_to,
    differences,
    stretch_of,
)
from kraftjbod.spark.tables.schemas import BATCH_SUMS

_BATCH: Final = (*PARTITION, "base_offset")
#: Sequence numbers wrap from this value to 0 (KIP-98).
_LAST_SEQUENCE: Final = 2**31 - 1
_NO_PRODUCER: Final = -1


def batch_sums(batches: DataFrame, *, stretch: int = GAP_STRETCH) -> DataFrame:
    """Return ``BATCH_SUMS``: one row per stretch of ``batches``.

    A replica has at most one valid batch at an offset, because it is read in order.
    """
    placed = batches.withColumn("stretch", stretch_of("base_offset", stretch))
    sound, led = F.col("finding").isNull(), F.expr("finding is null and is_leader")
    of_control = F.expr("last_offset - base_offset + 1")
    contents = ("last_offset", "record_count", "crc")
    at = placed.groupBy(*STRETCH, "base_offset").agg(
        F.count_if(sound).alias("replicas"),
        F.count("finding").alias("findings"),
        *(F.min(F.when(sound, F.col(name))).alias(f"least_{name}") for name in contents),
        *(F.max(F.when(sound, F.col(name))).alias(f"most_{name}") for name in contents),
        F.max(F.when(led & F.col("is_control"), of_control)).alias("control"),
        F.count_if(led & (F.col("producer_id") != _NO_PRODUCER)).alias("numbered"),
    )
    is_odd = F.expr(" or ".join(f"least_{name} <> most_{name}" for name in contents))
    sums = at.groupBy(*STRETCH).agg(
        F.sum("replicas").alias("batches"),
        F.sum("findings").alias("findings"),
        F.count_if(is_odd).alias("odd"),
        F.min("replicas").alias("fewest"),
        F.max("replicas").alias("most"),
        F.coalesce(F.sum("control"), F.lit(0)).alias("control"),
        F.sum("numbered").alias("numbered"),
    )
    return cast_to(sums, BATCH_SUMS)


def damaged_batches(batches: DataFrame) -> DataFrame:
    """Return the damaged batches of all replicas, as differences ``bad_crc``."""
    damaged = batches.where("finding = 'damaged'").withColumn("offset", F.col("base_offset"))
    where = F.format_string("%s: %s", F.coalesce("path", F.lit("?")), "detail")
    return differences(damaged, "bad_crc", where)


def replica_differences(batches: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the batches of followers that differ from the leader's, as ``replica_differs``.

    :param ranges: ``REPLICA_RANGES`` that were read of leaders and followers.
    """
    sound = batches.where("finding is null")
    leader = sound.where("is_leader").select(*_BATCH, _contents().alias("led"))
    followers = sound.where("not is_leader").select(
        *_BATCH, "broker_id", "path", _contents().alias("held")
    )
    asked = ranges.where("not is_leader").select(*PARTITION, "broker_id", "path").distinct()
    expected = leader.join(F.broadcast(asked), list(PARTITION))
    both = expected.join(followers.drop("path"), [*_BATCH, "broker_id"], "left")
    differing = both.where("held is null or held <> led")
    alone = followers.join(leader, list(_BATCH), "left_anti")
    found_here = [
        _differs(differing, F.coalesce("held", F.lit("no batch that begins here")), F.col("led")),
        _differs(alone, F.col("held"), F.lit("no batch that begins here")),
    ]
    return _without_findings(all_of(found_here), batches)


def repeated_sequences(batches: DataFrame) -> DataFrame:
    """Return leaders' batches with sequence numbers that their producer had used before.

    Such batches are differences ``duplicate``. Skipped numbers are no difference: brokers forget
    producers after some time, and then the sequence restarts.
    """
    led = batches.where("finding is null and is_leader and not is_control").where(
        (F.col("producer_id") != _NO_PRODUCER) & (F.col("record_count") > 0)
    )
    last = F.col("base_sequence") + F.col("last_offset") - F.col("base_offset")
    of_producer = Window.partitionBy(*PARTITION, "producer_id", "producer_epoch")
    ahead = led.withColumn("next_sequence", (last + 1) % (_LAST_SEQUENCE + 1)).withColumn(
        "due", F.lag("next_sequence").over(of_producer.orderBy("base_offset"))
    )
    distance = F.expr(f"pmod(due - base_sequence, {_LAST_SEQUENCE + 1}L)")
    again = ahead.where((distance > 0) & (distance <= _LAST_SEQUENCE // 2))
    found_here = (
        again.withColumn("offset", F.col("base_offset"))
        .withColumn("producer", F.format_string("id %d, epoch %d", "producer_id", "producer_epoch"))
        .withColumn("sequence", F.col("base_sequence"))
        .drop("broker_id")
    )
    return differences(found_here, "duplicate", F.format_string("sequence %d was due", "due"))


def control_offsets(batches: DataFrame) -> DataFrame:
    """Return topic, partition and offset of the leaders' control records, which no consumer
    sees."""
    control = batches.where("finding is null and is_leader and is_control")
    return control.select(
        *PARTITION, F.explode(F.sequence("base_offset", "last_offset")).alias("offset")
    ).distinct()


def _contents() -> Column:
    """Return a column with a text that is equal if and only if two batches are equal."""
    return F.format_string(
        "%d records up to offset %d with CRC %08x", "record_count", "last_offset", "crc"
    )


def _differs(frame: DataFrame, held: Column, led: Column) -> DataFrame:
    detail = F.concat(
        F.coalesce("path", F.lit("?")), F.lit(": "), held, F.lit("; the leader has "), led
    )
    found_here = frame.withColumn("offset", F.col("base_offset"))
    return differences(found_here, "replica_differs", detail)


def _without_findings(differences: DataFrame, batches: DataFrame) -> DataFrame:
    """Remove differences at offsets where the replica or its leader was damaged or not read."""
    findings = F.broadcast(
        batches.where("finding is not null").select(
            *PARTITION,
            F.col("broker_id").alias("finder"),
            "is_leader",
            F.col("base_offset").alias("from"),
            F.col("last_offset").alias("to"),
        )
    )
    found_here = differences.alias("here")
    found = findings.alias("found")
    is_covered = (
        (F.col("here.topic") == F.col("found.topic"))
        & (F.col("here.partition") == F.col("found.partition"))
        & F.col("here.offset").between(F.col("found.from"), F.col("found.to"))
        & (F.col("found.is_leader") | (F.col("here.broker_id") == F.col("found.finder")))
    )
    return found_here.join(found, is_covered, "left_anti")
