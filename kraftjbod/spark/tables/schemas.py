"""FRAME. The tables of the pipeline, and their schemas: every job reads and writes these.

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

#: The columns of the source, which are those of Spark's official Kafka connector.
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

#: The columns of the source with ``includeHeaders``.
RECORD_WITH_HEADERS: Final = StructType([*RECORD.fields, StructField("headers", ArrayType(HEADER))])

#: ``log_dirs``: one directory of one broker, as the broker or telemetry reports it. Input of plans.
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

#: ``replicas``: one replica and its directory. ``brokers`` is the partition's assignment, in order.
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

#: The sender and the time of every record of telemetry (protocol/telemetry/storage_telemetry.py).
_ORIGIN: Final = (
    StructField("cluster_id", StringType()),
    StructField("broker_id", IntegerType()),
    StructField("rack", StringType()),
    StructField("incarnation", StringType()),
    StructField("time", TimestampType()),
)

#: ``log_dir_samples``: the records of kind log_dir, with ``time`` for ``time_ms``.
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

#: ``replica_samples``: the records of kind replica.
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

#: ``group_lag``: the records of ``__group_telemetry``: the lag of a group in one partition.
#: ``log_end_offset`` and ``lag``, in records, are null if the leader did not respond.
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

#: ``telemetry_rejects``: records of both telemetry topics that are no samples, and the reason.
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

#: ``log_dir_windows``: one directory in one window of time. Rates and latencies are those of the
#: operations in the window. They are null without two samples of a counter.
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

#: ``log_dir_forecasts``: the time at which a directory will be full. ``full_at`` is null if its
#: line does not reach the total. ``earliest`` and ``latest`` are the ends of the 95 % band. A null
#: ``latest`` means perhaps never, and ``earliest`` alone that the directory may fill.
#: ``growth_error_bytes_per_s`` is half of the growth's 95 % band.
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

#: ``log_dir_outliers``: directories that are slow or failing in comparison with their peers, or not
#: online. ``finding`` is slow, errors, offline, saturated, stalled or silent (its broker reports
#: nothing). ``value`` is in milliseconds (slow) or a count (errors), and ``peers`` is the median of
#: the other directories. Both are null for other findings.
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

#: ``growth``: size and growth of one topic, broker or directory (``scope``) called ``name``.
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

#: ``skew``: the inequality of the parts of a whole (directories of a broker, brokers of the
#: cluster, replicas of a topic). ``skew`` is the largest part divided by the mean; 1 is even.
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

#: ``acknowledged``: a record that a producer reports as acknowledged. ``sequence`` numbers the
#: records of one ``producer`` and partition. ``key_crc`` and ``value_crc`` are CRC-32 (zlib's),
#: null without a key or value. All columns except topic, partition and offset may be null.
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

#: Acknowledgements as files have them. A line with ``count`` stands for that many records from
#: ``offset`` and ``sequence`` on. Its ``key_crcs`` and ``value_crcs`` have one element per record,
#: or are null.
ACKNOWLEDGED_LINES: Final = StructType(
    [
        *ACKNOWLEDGED.fields,
        StructField("count", LongType()),
        StructField("key_crcs", ArrayType(LongType())),
        StructField("value_crcs", ArrayType(LongType())),
    ]
)

#: The columns of a record that an audit reads.
AUDITED_COLUMNS: Final = StructType(
    [RECORD[name] for name in ("key", "value", "topic", "partition", "offset")]
)

#: The columns of a record that an audit keeps; ``content`` is a hash of key and value.
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

#: Numbers for one stretch of offsets. ``acknowledged`` counts acknowledgements, ``plain`` those
#: without a CRC, and ``nameless`` those without a producer or sequence. ``records`` counts rows of
#: records, and ``offsets`` the offsets that have one. ``odd`` counts the offsets that do not have
#: exactly one record, at most one acknowledgement and equal CRCs.
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

#: The result of an audit for each acknowledged record. ``standing`` is found, missing, changed,
#: trimmed (before the log's start), compacted (the topic keeps a later record of its key),
#: unchecked (compacted, and the key is not known) or unreadable (the partition has no leader).
AUDITED_ACKNOWLEDGEMENTS: Final = StructType(
    [
        *ACKNOWLEDGED.fields,
        StructField("standing", StringType()),
        StructField("detail", StringType()),
    ]
)

#: The offsets that an audit expects in a partition: from ``log_start`` (inclusive) to ``log_end``
#: (exclusive). Both are null if the partition has no leader.
LOG_RANGES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("log_start", LongType()),
        StructField("log_end", LongType()),
        StructField("is_compacted", BooleanType()),
    ]
)

#: Offsets of one replica that one task reads, from ``start`` (inclusive) to ``end`` (exclusive).
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

#: One record batch of one replica, with ``finding`` null. Or a range of offsets that is ``damaged``
#: (its bytes do not match their CRC) or ``unread`` (the replica did not send it); then the columns
#: after ``detail`` are null.
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

#: Numbers for one stretch of offsets, over all replicas: valid batches, rows of findings, offsets
#: at which batches differ (``odd``), the fewest and the most replicas with a batch at one offset,
#: offsets of control records, and batches of leaders that have a producer id (``numbered``).
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

#: ``audit_differences``: one error that an audit found. ``difference`` is missing, changed,
#: duplicate, out_of_order, offset_gap, bad_crc, replica_differs or unreadable (a whole partition).
#: ``detail`` describes it.
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
