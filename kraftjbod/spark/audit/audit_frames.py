"""FRAME. The comparisons of an audit: acknowledgements with records, and records with each other.

* An acknowledged record is searched only at the acknowledged offset.
* Each function returns the differences that it is named for, in the schema ``AUDIT_DIFFERENCES``. A
  correct cluster gives an empty frame.
* CRC-32 shows whether a record is the acknowledged one. Without a CRC in the acknowledgement only
  the record's presence can be checked.
* Offsets of a compacted topic may be missing if a later record has the same key.
* Each of these rules costs a shuffle. :func:`side_by_side` joins all rows once, by stretches of
  offsets. :func:`stretch_sums` finds in one pass the stretches that need the rules.

replica_frames.py compares replicas.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kraftjbod.spark.tables.schemas import (
    ACKNOWLEDGED,
    AUDIT_DIFFERENCES,
    AUDITED_ACKNOWLEDGEMENTS,
    AUDITED_PLACES,
    AUDITED_RECORDS,
    STRETCH_SUMS,
)

PLACE: Final = ("topic", "partition", "offset")
PARTITION: Final = ("topic", "partition")
#: Number of offsets in a stretch of a partition, the unit of parallel work.
GAP_STRETCH: Final = 1_000_000
STRETCH: Final = (*PARTITION, "stretch")
CRCS: Final = ("key_crc", "value_crc")
#: Values of ``standing`` that are differences.
BAD_STANDINGS: Final = ("missing", "changed")


def cast_to(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of ``schema`` in its order, cast to its types; missing columns are
    null."""
    return frame.select(
        *(
            (F.col(f.name) if f.name in frame.columns else F.lit(None))
            .cast(f.dataType)
            .alias(f.name)
            for f in schema.fields
        )
    )


def differences(frame: DataFrame, difference: str, detail: Column) -> DataFrame:
    """Return ``frame`` as ``AUDIT_DIFFERENCES`` of the kind ``difference``, with ``detail`` as the
    text."""
    found = frame.withColumn("difference", F.lit(difference)).withColumn("detail", detail)
    return cast_to(found, AUDIT_DIFFERENCES)


def all_of(frames: list[DataFrame]) -> DataFrame:
    """Return the union of ``frames``, of which there must be one at least, with the columns and
    types of ``AUDIT_DIFFERENCES``."""
    return cast_to(reduce(DataFrame.unionByName, frames), AUDIT_DIFFERENCES)


def acknowledgements(lines: DataFrame) -> DataFrame:
    """Return one row per acknowledged record, as ``ACKNOWLEDGED``.

    :param lines: ``ACKNOWLEDGED_LINES``, in which a line may stand for many records.
    """
    numbered = lines.select(
        "*", F.explode(F.sequence(F.lit(0), F.coalesce("count", F.lit(1)) - 1)).alias("index")
    ).where("coalesce(count, 1) > 0")
    return cast_to(
        numbered.withColumn("offset", F.col("offset") + F.col("index"))
        .withColumn("sequence", F.col("sequence") + F.col("index"))
        .withColumn("key_crc", F.coalesce("key_crc", _element("key_crcs")))
        .withColumn("value_crc", F.coalesce("value_crc", _element("value_crcs"))),
        ACKNOWLEDGED,
    )


def audited_records(records: DataFrame) -> DataFrame:
    """Return ``AUDITED_RECORDS``: the position of each record, and CRCs of its key and value.

    :param records: has at least the columns ``AUDITED_COLUMNS``.
    """
    hashed = (
        records.withColumn("key_crc", F.crc32("key"))
        .withColumn("value_crc", F.crc32("value"))
        .withColumn("content", F.xxhash64("key", "value"))
    )
    return cast_to(hashed, AUDITED_RECORDS)


def side_by_side(
    acknowledged: DataFrame, records: DataFrame, *, stretch: int = GAP_STRETCH
) -> DataFrame:
    """Return ``AUDITED_PLACES``: acknowledgements and records, with each stretch in one task.

    :param stretch: length of a stretch, in offsets.
    """
    both = acknowledged.withColumn("is_acknowledged", F.lit(True)).unionByName(
        records.withColumn("is_acknowledged", F.lit(False)), allowMissingColumns=True
    )
    numbered = both.withColumn("stretch", stretch_of("offset", stretch))
    return cast_to(numbered, AUDITED_PLACES).repartition(*STRETCH)


def stretch_sums(places: DataFrame) -> DataFrame:
    """Return ``STRETCH_SUMS``: one row per stretch of ``places``, the result of
    :func:`side_by_side`.
    """
    acked, held = F.col("is_acknowledged"), ~F.col("is_acknowledged")
    at = places.groupBy(*STRETCH, "offset").agg(
        F.count_if(acked).alias("acknowledged"),
        F.count_if(held).alias("records"),
        F.count_if(acked & F.expr("key_crc is null and value_crc is null")).alias("plain"),
        F.count_if(acked & F.expr("producer is null or sequence is null")).alias("nameless"),
        *(F.max(F.when(acked, F.col(crc))).alias(crc) for crc in CRCS),
        *(F.max(F.when(held, F.col(crc))).alias(f"held_{crc}") for crc in CRCS),
    )
    is_absent = (F.col("acknowledged") > 0) & (F.col("records") == 0)
    is_changed = (F.col("acknowledged") > 0) & (_differs("key_crc") | _differs("value_crc"))
    is_odd = F.expr("acknowledged > 1 or records > 1") | is_absent | is_changed
    is_held, is_acked = F.col("records") > 0, F.col("acknowledged") > 0
    sums = at.groupBy(*STRETCH).agg(
        *(F.sum(name).alias(name) for name in ("acknowledged", "plain", "nameless", "records")),
        F.count_if(is_held).alias("offsets"),
        F.count_if(is_odd).alias("odd"),
        F.min(F.when(is_held, F.col("offset"))).alias("first_record"),
        F.max(F.when(is_held, F.col("offset"))).alias("last_record"),
        F.min(F.when(is_acked, F.col("offset"))).alias("first_acknowledged"),
    )
    return cast_to(sums, STRETCH_SUMS)


def stretch_of(offset: str, length: int) -> Column:
    """Return the number of the stretch that contains the column ``offset``.

    :param length: length of a stretch, in offsets.
    """
    return F.floor(F.col(offset) / F.lit(length))


def line_sums(lines: DataFrame) -> DataFrame:
    """Return sums of ``ACKNOWLEDGED_LINES`` by topic and partition.

    ``lines`` counts all lines, and ``lacking`` the lines without a required column. ``disorderly``
    counts lines with a producer and a sequence whose offset or sequence does not exceed the last
    one of the producer's earlier lines, in the order of offsets.
    """
    size = F.coalesce("count", F.lit(1))
    ends = lines.withColumn("last_offset", F.col("offset") + size - 1).withColumn(
        "last_sequence", F.col("sequence") + size - 1
    )
    before = (
        Window.partitionBy(*PARTITION, "producer")
        .orderBy("offset", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    is_numbered = F.expr("producer is not null and sequence is not null")
    ordered = ends.withColumn("offset_before", F.max("last_offset").over(before)).withColumn(
        "sequence_before", F.max("last_sequence").over(before)
    )
    is_disorderly = F.expr("offset <= offset_before or sequence <= sequence_before")
    lacking = " or ".join(f"{name} is null" for name in PLACE)
    return ordered.groupBy(*PARTITION).agg(
        F.count("*").alias("lines"),
        F.count_if(F.expr(lacking)).alias("lacking"),
        F.count_if(is_numbered & is_disorderly).alias("disorderly"),
    )


def standings(
    acknowledged: DataFrame, records: DataFrame, ranges: DataFrame, *, has_compacted: bool
) -> DataFrame:
    """Return ``AUDITED_ACKNOWLEDGEMENTS``: the result for each acknowledged record.

    :param ranges: ``LOG_RANGES`` of the audited partitions.
    :param has_compacted: whether any of ``ranges`` is compacted, which costs another shuffle.
    """
    held = records.dropDuplicates(list(PLACE)).select(
        *PLACE,
        F.col("key_crc").alias("held_key_crc"),
        F.col("value_crc").alias("held_value_crc"),
        F.lit(True).alias("is_held"),
    )
    known = F.broadcast(ranges.withColumn("is_known", F.lit(True)))
    joined = acknowledged.join(held, list(PLACE), "left").join(known, list(PARTITION), "left")
    if has_compacted:
        latest = _latest_of_keys(acknowledged, records, ranges)
        joined = joined.join(latest, [*PARTITION, "key_crc"], "left")
    else:
        joined = joined.withColumn("latest", F.lit(None).cast("long"))
    judged = joined.withColumn("standing", _standing())
    return cast_to(judged.withColumn("detail", _standing_detail()), AUDITED_ACKNOWLEDGEMENTS)


def missing_or_changed(standings: DataFrame) -> DataFrame:
    """Return the missing and the changed records among :func:`standings`, as differences."""
    bad = standings.where(F.col("standing").isin(*BAD_STANDINGS))
    return cast_to(bad.withColumn("difference", F.col("standing")), AUDIT_DIFFERENCES)


def unreadable(standings: DataFrame) -> DataFrame:
    """Return one difference per partition that has no leader, with its number of acknowledged
    records."""
    silent = standings.where("standing = 'unreadable'").groupBy(*PARTITION).count()
    detail = F.format_string("no broker leads it: %,d acknowledged records unseen", "count")
    return differences(silent, "unreadable", detail)


def acknowledged_at_one_offset(acknowledged: DataFrame) -> DataFrame:
    """Return the offsets that were acknowledged for two records, of which one must be missing, as
    differences ``missing``. Records without a producer or sequence are skipped.
    """
    numbered = acknowledged.where("producer is not null and sequence is not null")
    claim = F.struct("producer", "sequence")
    claims = numbered.groupBy(*PLACE).agg(F.min(claim).alias("one"), F.max(claim).alias("other"))
    detail = F.format_string(
        "record %d of %s was acknowledged at this offset as well", "one.sequence", "one.producer"
    )
    contested = claims.where("one <> other").select("*", "other.producer", "other.sequence")
    return differences(contested, "missing", detail)


def acknowledged_twice(acknowledged: DataFrame) -> DataFrame:
    """Return the records that were acknowledged at several offsets, at the last of these."""
    numbered = acknowledged.where("producer is not null and sequence is not null")
    placed = numbered.groupBy(*PARTITION, "producer", "sequence").agg(
        F.min("offset").alias("first"), F.max("offset").alias("offset")
    )
    detail = F.format_string("acknowledged at offset %d before", "first")
    return differences(placed.where("offset > first"), "duplicate", detail)


def out_of_order(acknowledged: DataFrame) -> DataFrame:
    """Return the acknowledged records that have a higher offset than a later record of their
    producer."""
    numbered = acknowledged.where("producer is not null and sequence is not null")
    before = Window.partitionBy(*PARTITION, "producer").orderBy("offset", "sequence")
    preceded = numbered.withColumn(
        "last", F.max("sequence").over(before.rowsBetween(Window.unboundedPreceding, -1))
    )
    return differences(
        preceded.where("sequence < last"),
        "out_of_order",
        F.format_string("its producer's record %d precedes it", "last"),
    )


def read_twice(records: DataFrame) -> DataFrame:
    """Return the offsets that were read more than once.

    Such offsets are possible in a table of ``ingest``, but not in a topic.
    """
    counted = records.groupBy(*PLACE).count().where("count > 1")
    return differences(counted, "duplicate", F.format_string("it is there %d times", "count"))


def repeated_content(acknowledged: DataFrame, records: DataFrame) -> DataFrame:
    """Return repetitions of a key and value in a partition, if any of the equal records was
    acknowledged.

    Valid only if no producer sends the same key and value twice.
    """
    acked = acknowledged.select(*PLACE, F.lit(True).alias("is_acked")).distinct()
    marked = records.dropDuplicates(list(PLACE)).join(acked, list(PLACE), "left")
    same = Window.partitionBy(*PARTITION, "key_crc", "value_crc", "content")
    repeated = marked.withColumn("first", F.min("offset").over(same)).withColumn(
        "is_any_acked", F.max("is_acked").over(same)
    )
    return differences(
        repeated.where("offset > first and is_any_acked"),
        "duplicate",
        F.format_string("the same key and value stand at offset %d", "first"),
    )


def offset_gaps(
    records: DataFrame,
    ranges: DataFrame,
    control: DataFrame,
    *,
    stretch: int = GAP_STRETCH,
    only: DataFrame | None = None,
) -> DataFrame:
    """Return the ranges of offsets between start and end of a log that have no record.

    Compacted topics are skipped. A gap that continues in the next stretch is reported in parts.

    :param control: topic, partition and offset of each control record, which no reader sees.
    :param stretch: length of a stretch, in offsets.
    :param only: the stretches to search; None for all.
    """
    number = stretch_of("offset", stretch)
    whole = ranges.where("not is_compacted and log_start < log_end").select(
        *PARTITION, "log_start", "log_end"
    )
    seen = records.select(*PLACE).unionByName(control.select(*PLACE))
    seen = seen.join(F.broadcast(whole), list(PARTITION))
    seen = seen.where("offset >= log_start and offset < log_end").withColumn("stretch", number)
    within = Window.partitionBy(*PARTITION, "stretch").orderBy("offset")
    columns = [*PLACE, "stretch"]
    before = seen.select(*columns).unionByName(_stretch_ends(whole, stretch).select(*columns))
    if only is not None:
        before = before.join(F.broadcast(only), list(STRETCH), "left_semi")
    holes = before.withColumn("from", F.lag("offset").over(within) + 1).where("offset > from")
    found = holes.withColumn("to", F.col("offset") - 1).withColumn("offset", F.col("from"))
    detail = F.format_string(
        "no record from here to %d (%,d offsets)", "to", F.expr("to - from + 1")
    )
    return differences(found, "offset_gap", detail)


def _element(name: str) -> Column:
    return F.get(name, F.col("index"))


def _latest_of_keys(acknowledged: DataFrame, records: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the last offset of each key of compacted topics, in records or acknowledgements."""
    compacted = F.broadcast(ranges.where("is_compacted").select(*PARTITION))
    keyed = [frame.select(*PLACE, "key_crc") for frame in (acknowledged, records)]
    both = keyed[0].unionByName(keyed[1]).where("key_crc is not null")
    return (
        both.join(compacted, list(PARTITION), "left_semi")
        .groupBy(*PARTITION, "key_crc")
        .agg(F.max("offset").alias("latest"))
    )


def _standing() -> Column:
    absent = F.col("is_held").isNull()
    return (
        F.when(F.col("is_known").isNull(), "missing")
        .when(F.col("log_end").isNull(), "unreadable")
        .when(F.col("offset") < F.col("log_start"), "trimmed")
        .when(absent & F.col("is_compacted") & F.col("key_crc").isNull(), "unchecked")
        .when(absent & F.col("is_compacted") & (F.col("latest") > F.col("offset")), "compacted")
        # Compaction finally removes a tombstone as well.
        .when(absent & F.col("is_compacted") & F.col("value_crc").isNull(), "compacted")
        .when(absent, "missing")
        .when(_differs("key_crc") | _differs("value_crc"), "changed")
        .otherwise("found")
    )


def _differs(crc: str) -> Column:
    """Return the condition that an acknowledged CRC is present and differs from the record's
    CRC."""
    return F.col(crc).isNotNull() & ~F.col(crc).eqNullSafe(F.col(f"held_{crc}"))


def _standing_detail() -> Column:
    log = F.format_string("the log holds %d up to before %d", "log_start", "log_end")
    crcs = F.format_string(
        "CRC of key and value: %s and %s, acknowledged with %s and %s",
        *(
            F.coalesce(F.lower(F.hex(name)), F.lit("none"))
            for name in ("held_key_crc", "held_value_crc", "key_crc", "value_crc")
        ),
    )
    return (
        F.when(F.col("is_known").isNull(), "there is no such partition")
        .when(F.col("standing") == "missing", log)
        .when(F.col("standing") == "changed", crcs)
    )


def _stretch_ends(whole: DataFrame, stretch: int) -> DataFrame:
    """Return the offsets before the first and after the last offset of each stretch of each log.

    With them a gap at the beginning or end of a stretch lies between two offsets.
    """
    size = F.lit(stretch)
    stretches = whole.select(
        "*",
        F.explode(
            F.sequence(F.floor(F.col("log_start") / size), F.floor((F.col("log_end") - 1) / size))
        ).alias("stretch"),
    )
    first = F.greatest(F.col("log_start"), F.col("stretch") * size)
    end = F.least(F.col("log_end"), (F.col("stretch") + 1) * size)
    return stretches.withColumn("offset", F.explode(F.array(first - 1, end)))
