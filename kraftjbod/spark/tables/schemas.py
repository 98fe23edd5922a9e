"""FRAME. The tables of the pipeline, and their schemas: every read and every write ends in one of
them.

A table is a folder of Parquet files of its name under the folder that ``--tables`` gives.
Times are UTC timestamps, sizes bytes, rates bytes per second, latencies milliseconds.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

#: One header of a record.
HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

#: What the source gives and Spark's official Kafka connector gives, column by column.
RECORD: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)

#: With ``includeHeaders``.
RECORD_WITH_HEADERS: Final = StructType([*RECORD.fields, StructField("headers", ArrayType(HEADER))])

#: ``log_dirs``: one directory of one broker, as the cluster or its telemetry has it. Input of
#: plans.
LOG_DIRS: Final = StructType(
    [
        StructField("broker_id", IntegerType()),
        StructField("rack", StringType()),
        StructField("path", StringType()),
        StructField("directory_id", StringType()),
        StructField("state", StringType()),
        StructField("is_cordoned", BooleanType()),
        StructField("total_bytes", LongType()),
        StructField("free_bytes", LongType()),
    ]
)

#: ``replicas``: one replica where it lies. ``brokers`` is the partition's assignment, in order.
REPLICAS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("broker_id", IntegerType()),
        StructField("path", StringType()),
        StructField("size_bytes", LongType()),
        StructField("write_rate", DoubleType()),
        StructField("is_leader", BooleanType()),
        StructField("is_future", BooleanType()),
        StructField("brokers", ArrayType(IntegerType())),
    ]
)

#: Who says it, in every record of telemetry (protocol/telemetry/storage_telemetry.py).
_ORIGIN: Final = (
    StructField("cluster_id", StringType()),
    StructField("broker_id", IntegerType()),
    StructField("rack", StringType()),
    StructField("incarnation", StringType()),
    StructField("time", TimestampType()),
)

#: ``log_dir_samples``: records of kind log_dir as they came, with ``time`` for ``time_ms``.
LOG_DIR_SAMPLES: Final = StructType(
    [
        *_ORIGIN,
        StructField("directory_id", StringType()),
        StructField("path", StringType()),
        StructField("state", StringType()),
        StructField("is_cordoned", BooleanType()),
        StructField("since", TimestampType()),
        StructField("total_bytes", LongType()),
        StructField("free_bytes", LongType()),
        StructField("replica_bytes", LongType()),
        StructField("replicas", LongType()),
        StructField("growth_bytes_per_s", DoubleType()),
        StructField("log_growth_bytes_per_s", DoubleType()),
        StructField("appended_bytes_total", LongType()),
        StructField("fetched_bytes_total", LongType()),
        StructField("io_total", LongType()),
        StructField("io_errors_total", LongType()),
        StructField("io_bounds_ms", ArrayType(LongType())),
        StructField("io_counts", ArrayType(LongType())),
        StructField("latency_ms", DoubleType()),
        StructField("is_slow", BooleanType()),
        StructField("queued_assignments", LongType()),
        StructField("moves_in", LongType()),
        StructField("moves_out", LongType()),
        StructField("moves_remaining_bytes", LongType()),
    ]
)

#: ``replica_samples``: records of kind replica as they came.
REPLICA_SAMPLES: Final = StructType(
    [
        *_ORIGIN,
        StructField("directory_id", StringType()),
        StructField("path", StringType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("is_future", BooleanType()),
        StructField("is_leader", BooleanType()),
        StructField("size_bytes", LongType()),
        StructField("log_start_offset", LongType()),
        StructField("log_end_offset", LongType()),
        StructField("appended_bytes_total", LongType()),
        StructField("fetched_bytes_total", LongType()),
        StructField("brokers", ArrayType(IntegerType())),
    ]
)

#: ``group_lag``: records of ``__group_telemetry`` as they came: how far a group was behind on one
#: partition. ``log_end_offset`` and ``lag``, in records, are null where a leader did not answer.
GROUP_LAG: Final = StructType(
    [
        *_ORIGIN,
        StructField("group_id", StringType()),
        StructField("group_type", StringType()),
        StructField("state", StringType()),
        StructField("members", LongType()),
        StructField("topic", StringType()),
        StructField("topic_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("committed_offset", LongType()),
        StructField("committed", TimestampType()),
        StructField("log_end_offset", LongType()),
        StructField("lag", LongType()),
    ]
)

#: ``telemetry_rejects``: records of both topics of telemetry that are no samples, and why.
TELEMETRY_REJECTS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("reason", StringType()),
    ]
)

#: ``log_dir_windows``: one directory in one window of time. Rates and latencies are of the window's
#: operations; null where two samples of one counter are missing.
LOG_DIR_WINDOWS: Final = StructType(
    [
        StructField("window_start", TimestampType()),
        StructField("window_end", TimestampType()),
        StructField("broker_id", IntegerType()),
        StructField("rack", StringType()),
        StructField("directory_id", StringType()),
        StructField("path", StringType()),
        StructField("state", StringType()),
        StructField("is_cordoned", BooleanType()),
        StructField("total_bytes", LongType()),
        StructField("free_bytes", LongType()),
        StructField("replica_bytes", LongType()),
        StructField("append_bytes_per_s", DoubleType()),
        StructField("fetch_bytes_per_s", DoubleType()),
        StructField("io_per_s", DoubleType()),
        StructField("io_errors", LongType()),
        StructField("p99_latency_ms", DoubleType()),
        StructField("samples", LongType()),
    ]
)

#: ``log_dir_forecasts``: when a directory will be full. ``full_at`` is null where it does not fill;
#: ``earliest`` and ``latest`` are the ends of the 95 % band (``latest`` null: perhaps never; with
#: ``earliest`` alone it may fill). ``growth_error_bytes_per_s`` is half of the growth's 95 % band.
LOG_DIR_FORECASTS: Final = StructType(
    [
        StructField("broker_id", IntegerType()),
        StructField("directory_id", StringType()),
        StructField("path", StringType()),
        StructField("from", TimestampType()),
        StructField("to", TimestampType()),
        StructField("samples", LongType()),
        StructField("used_bytes", LongType()),
        StructField("total_bytes", LongType()),
        StructField("growth_bytes_per_s", DoubleType()),
        StructField("growth_error_bytes_per_s", DoubleType()),
        StructField("full_at", TimestampType()),
        StructField("earliest", TimestampType()),
        StructField("latest", TimestampType()),
    ]
)

#: ``log_dir_outliers``: directories that are slow or failing against their peers. ``finding`` is
#: slow, errors, offline, saturated, stalled or silent (its broker says nothing); ``value`` is in
#: milliseconds or errors, ``peers`` the median of the others'; both are null for the rest.
LOG_DIR_OUTLIERS: Final = StructType(
    [
        StructField("broker_id", IntegerType()),
        StructField("directory_id", StringType()),
        StructField("path", StringType()),
        StructField("finding", StringType()),
        StructField("since", TimestampType()),
        StructField("value", DoubleType()),
        StructField("peers", DoubleType()),
    ]
)

#: ``growth``: per topic, broker or directory (``scope``; ``name`` says which).
GROWTH: Final = StructType(
    [
        StructField("scope", StringType()),
        StructField("name", StringType()),
        StructField("size_bytes", LongType()),
        StructField("replicas", LongType()),
        StructField("growth_bytes_per_s", DoubleType()),
        StructField("write_bytes_per_s", DoubleType()),
    ]
)

#: ``skew``: how uneven the parts of a whole are (directories of a broker, brokers of the cluster,
#: replicas of a topic). ``skew`` is the largest part over the mean; 1 is even.
SKEW: Final = StructType(
    [
        StructField("scope", StringType()),
        StructField("name", StringType()),
        StructField("parts", LongType()),
        StructField("mean_bytes", DoubleType()),
        StructField("max_bytes", LongType()),
        StructField("min_bytes", LongType()),
        StructField("skew", DoubleType()),
    ]
)

#: ``plan_dirs``: each directory before and after a plan. ``write_rate`` in bytes per second.
PLAN_DIRS: Final = StructType(
    [
        StructField("broker_id", IntegerType()),
        StructField("rack", StringType()),
        StructField("path", StringType()),
        StructField("total_bytes", LongType()),
        StructField("bytes_before", LongType()),
        StructField("bytes_after", LongType()),
        StructField("write_rate_before", DoubleType()),
        StructField("write_rate_after", DoubleType()),
        StructField("replicas_before", LongType()),
        StructField("replicas_after", LongType()),
    ]
)

#: ``plan_moves``: one replica that a plan moves.
PLAN_MOVES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("from_broker", IntegerType()),
        StructField("from_path", StringType()),
        StructField("to_broker", IntegerType()),
        StructField("to_path", StringType()),
        StructField("size_bytes", LongType()),
        StructField("write_rate", DoubleType()),
    ]
)

#: ``ingested``: the table that ``ingest`` writes, in folders by ``status``: ``good``, ``late`` or
#: ``corrupt`` (``reason`` says why). Together they hold every record, once.
INGESTED: Final = StructType(
    [
        *RECORD_WITH_HEADERS.fields,
        StructField("event_time", TimestampType()),
        StructField("reason", StringType()),
        StructField("status", StringType()),
    ]
)

#: ``acknowledged``: what producers say: the record at this offset was acknowledged. ``producer``
#: and ``sequence`` number a producer's records of one partition; ``key_crc`` and ``value_crc`` are
#: CRC-32 (zlib's), null for no key or value. Any but topic, partition and offset may be null.
ACKNOWLEDGED: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("producer", StringType()),
        StructField("sequence", LongType()),
        StructField("key_crc", LongType()),
        StructField("value_crc", LongType()),
    ]
)

#: The same as files have it. A line with ``count`` stands for that many records from ``offset`` and
#: ``sequence`` on; ``key_crcs`` and ``value_crcs`` then hold one element per record, or are null.
ACKNOWLEDGED_LINES: Final = StructType(
    [
        *ACKNOWLEDGED.fields,
        StructField("count", LongType()),
        StructField("key_crcs", ArrayType(LongType())),
        StructField("value_crcs", ArrayType(LongType())),
    ]
)

#: What an audit reads of a record.
AUDITED_COLUMNS: Final = StructType(
    [RECORD[name] for name in ("key", "value", "topic", "partition", "offset")]
)

#: What an audit keeps of a record; ``content`` is a hash of key and value.
AUDITED_RECORDS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("key_crc", LongType()),
        StructField("value_crc", LongType()),
        StructField("content", LongType()),
    ]
)

#: Acknowledgements and records side by side; ``stretch`` numbers the stretches of a partition.
AUDITED_PLACES: Final = StructType(
    [
        *AUDITED_RECORDS.fields[:3],
        StructField("stretch", LongType()),
        StructField("is_acknowledged", BooleanType()),
        *ACKNOWLEDGED.fields[3:],
        StructField("content", LongType()),
    ]
)

#: One stretch of offsets: rows of acknowledgements, of those without a CRC (``plain``) and without
#: a producer or sequence (``nameless``), rows of records, offsets that have one, and offsets at
#: which anything but one record with at most one acknowledgement of it is seen (``odd``).
STRETCH_SUMS: Final = StructType(
    [
        *AUDITED_PLACES.fields[:2],
        *(
            StructField(name, LongType())
            for name in (
                *("stretch", "acknowledged", "plain", "nameless", "records", "offsets", "odd"),
                *("first_record", "last_record", "first_acknowledged"),
            )
        ),
    ]
)

#: What an audit found of each acknowledged record. ``standing`` is found, missing, changed,
#: trimmed (before the log's start), compacted (the topic keeps a later record of its key),
#: unchecked (compacted, and the key is not known) or unreadable (the partition has no leader).
AUDITED_ACKNOWLEDGEMENTS: Final = StructType(
    [
        *ACKNOWLEDGED.fields,
        StructField("standing", StringType()),
        StructField("detail", StringType()),
    ]
)

#: Which offsets an audit expects of a partition: from ``log_start`` up to before ``log_end``, both
#: null where no leader gives them.
LOG_RANGES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("log_start", LongType()),
        StructField("log_end", LongType()),
        StructField("is_compacted", BooleanType()),
    ]
)

#: Offsets of one replica that one task reads, from ``start`` up to before ``end``.
REPLICA_RANGES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("broker_id", IntegerType()),
        StructField("path", StringType()),
        StructField("is_leader", BooleanType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
    ]
)

#: One record batch as one replica holds it. ``finding`` is null, or ``damaged`` (its bytes are not
#: what was written), or ``unread`` (offsets that the replica did not give): then the fields after
#: it
#: ``detail`` are null.
REPLICA_BATCHES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("broker_id", IntegerType()),
        StructField("path", StringType()),
        StructField("is_leader", BooleanType()),
        StructField("base_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("finding", StringType()),
        StructField("detail", StringType()),
        StructField("record_count", IntegerType()),
        StructField("crc", LongType()),
        StructField("is_control", BooleanType()),
        StructField("producer_id", LongType()),
        StructField("producer_epoch", IntegerType()),
        StructField("base_sequence", LongType()),
    ]
)

#: One stretch of offsets as all replicas hold it: sound batches, rows of findings, offsets at which
#: batches differ (``odd``), the fewest and the most replicas with a batch at one offset, offsets of
#: control records, and batches of leaders that have a producer id (``numbered``).
BATCH_SUMS: Final = StructType(
    [
        *REPLICA_BATCHES.fields[:2],
        *(
            StructField(name, LongType())
            for name in (
                *("stretch", "batches", "findings", "odd", "fewest", "most", "control"),
                "numbered",
            )
        ),
    ]
)

#: ``audit_differences``: one thing that is not as it should be. ``difference`` is missing, changed,
#: duplicate, out_of_order, offset_gap, bad_crc, replica_differs or unreadable (a whole partition);
#: ``detail`` says more in words.
AUDIT_DIFFERENCES: Final = StructType(
    [
        StructField("difference", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("broker_id", IntegerType()),
        StructField("producer", StringType()),
        StructField("sequence", LongType()),
        StructField("detail", StringType()),
    ]
)
