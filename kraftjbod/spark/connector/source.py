"""WIRE. The data source ``kraftjbod``: topics as Spark frames, in batches and as streams, and back.

``spark.read.format("kraftjbod")`` accepts the options of Spark's Kafka connector and returns its
columns, without a jar. options.py lists the options. One option is additional: ``columns``, a
comma-separated list of the columns to read. (Spark does not tell Python sources which columns a
query uses.)

* A query that runs without interruption reads each record once. A stream that restarts from its
  checkpoint continues after the last finished batch.
* Offsets of a stream look like the connector's, with the ids of the topics in addition.
* The driver looks up offsets, and executors read. Tasks get only ranges and settings.

sink.py implements writing.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offset_lookup import OffsetLookup
from kraftjbod.spark.connector.offsets import (
    OffsetRange,
    Offsets,
    StreamOffset,
    check_range,
    is_recreated,
    limit_offsets,
    plan_batch,
    split_ranges,
    unknown_first_offsets,
)
from kraftjbod.spark.connector.options import (
    LATEST,
    AtOffset,
    AtOffsets,
    AtTime,
    AtTimes,
    SourceOptions,
    parse_source_options,
)
from kraftjbod.spark.connector.record_reader import ReadSettings, RecordReader, report_loss
from kraftjbod.spark.connector.sink import KraftjbodStreamWriter, KraftjbodWriter
from kraftjbod.spark.tables.schemas import RECORD_WITH_HEADERS

Json = dict[str, Any]
M = TypeVar("M", bound=Callable[..., Any])


def register(spark: SparkSession) -> None:
    """Register the format ``kraftjbod`` in ``spark``."""
    spark.dataSource.register(KraftjbodDataSource)


def without_frames(method: M) -> M:
    """Decorate ``method`` to raise this package's errors without the traceback below the method.

    Spark prints the traceback of its Python worker before the message. For a wrong option these
    sixteen lines do not help.
    """

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except KraftJbodError as e:
            raise e.with_traceback(None) from None

    return cast(M, call)


class KraftjbodDataSource(DataSource):
    """Creates readers and writers for Spark. Options are checked when a frame is created."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        #: Suffix of the group id of one query's consumers; no group of that name is joined.
        self._suffix = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "kraftjbod"

    @without_frames
    def schema(self) -> StructType:
        return _schema(parse_source_options(self.options, is_streaming=None))

    @without_frames
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source_options(self.options, is_streaming=False)
        return KraftjbodReader(options, _checked(schema, options), self._suffix)

    @without_frames
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_source_options(self.options, is_streaming=True)
        return KraftjbodStreamReader(options, _checked(schema, options), self._suffix)

    @without_frames
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return KraftjbodWriter(self.options, schema, overwrite)

    @without_frames
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return KraftjbodStreamWriter(self.options, schema)


def _schema(options: SourceOptions) -> StructType:
    return StructType([RECORD_WITH_HEADERS[name] for name in options.columns])


def _checked(schema: StructType, options: SourceOptions) -> StructType:
    own = _schema(options)
    if schema.names != own.names:
        raise ConfigError("the source defines its schema: remove .schema(...)")
    return own


class RangePartition(InputPartition):
    """The work of one task: a range of offsets."""

    def __init__(self, found: OffsetRange) -> None:
        super().__init__(found)
        self.range = found


class _Ranges:
    """The code that both readers share: tasks for ranges, and losses."""

    def __init__(self, options: SourceOptions, schema: StructType, suffix: str) -> None:
        self._options = options
        group = options.kafka.get("group.id", f"{options.group_id_prefix}-{suffix}")
        self._settings = ReadSettings(
            kafka={**options.kafka, "group.id": group},
            columns=options.columns,
            fail_on_data_loss=options.fail_on_data_loss,
            poll_timeout_ms=options.poll_timeout_ms,
        )
        self._arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark creates an empty partition itself if there is nothing to read.
        if isinstance(partition, RangePartition):
            yield from RecordReader(partition.range, self._settings, self._arrow).batches()

    def tasks(self, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
        split = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [RangePartition(found) for found in split]

    def report_losses(self, losses: Sequence[str]) -> None:
        """Report all losses together, in one warning or error."""
        if losses:
            report_loss("; ".join(losses), fails=self._options.fail_on_data_loss)

    def within(
        self,
        partitions: Iterable[TopicPartition],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        lookup: OffsetLookup,
    ) -> list[OffsetRange]:
        """Return the range of each partition, limited to the offsets that exist.

        :param ends: end offsets; a partition without one gets an empty range.
        :raises DataLossError: offsets are missing, and ``failOnDataLoss`` is true.
        """
        first, last = lookup.earliest(starts), lookup.latest(starts, ends)
        losses: list[str] = []
        ranges = []
        for partition in sorted(partitions):
            if partition not in starts or partition not in first or partition not in last:
                losses.append(f"{partition} is gone before anything of it was read")
                continue
            start, low, high = starts[partition], first[partition], last[partition]
            losses += check_range(partition, start, ends.get(partition, start), low, high)
            begin = min(max(start, low), high)
            end = min(max(ends.get(partition, start), begin), high)
            ranges.append(OffsetRange(partition=partition, start=begin, end=end))
        self.report_losses(losses)
        return ranges


class KraftjbodReader(DataSourceReader):
    """Reads a batch. Offsets are looked up each time that Spark computes the frame."""

    def __init__(self, options: SourceOptions, schema: StructType, suffix: str) -> None:
        self._options = options
        self._ranges = _Ranges(options, schema, suffix)

    @without_frames
    def partitions(self) -> list[InputPartition]:
        lookup = OffsetLookup(self._options)
        there = lookup.assigned(must_exist=True).partitions
        starts = lookup.resolve(self._options.starting, there, is_start=True)
        ends = lookup.resolve(self._options.ending, there, is_start=False)
        return self._ranges.tasks(self._ranges.within(there, starts, ends, lookup))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.batches(partition)


class KraftjbodStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. The driver keeps one reader per query; copies are sent to executors.

    If a query starts at the topics' end, its first batch is empty on purpose: it stores the start
    in the checkpoint. Otherwise a query that failed in its first batch would start again at a later
    end, and skip the records in between.
    """

    def __init__(self, options: SourceOptions, schema: StructType, suffix: str) -> None:
        self._options = options
        self._ranges = _Ranges(options, schema, suffix)
        self._lookup: OffsetLookup | None = None
        #: Start of a query without a checkpoint; Spark asks for it repeatedly.
        self._initial: Json | None = None
        #: Whether the first batch is still due, and must be empty.
        self._is_empty_due = False
        self._is_available_now = False
        #: End of a query with Trigger.AvailableNow.
        self._target: StreamOffset | None = None
        #: The last known end of the topics.
        self._latest: StreamOffset | None = None
        #: Time of the last batch that minOffsetsPerTrigger did not delay.
        self._batch_at_s: float | None = None

    def __getstate__(self) -> Json:
        return {**self.__dict__, "_lookup": None}

    @without_frames
    def initialOffset(self) -> Json:
        if self._initial is None:
            lookup = self._asking()
            assigned = lookup.assigned(must_exist=True)
            starts = lookup.resolve(self._options.starting, assigned.partitions, is_start=True)
            ranges = self._ranges.within(assigned.partitions, starts, starts, lookup)
            offsets = {found.partition: found.start for found in ranges}
            begun = StreamOffset(offsets=offsets, topic_ids=assigned.topic_ids)
            self._initial = begun.to_json()
            self._is_empty_due = _is_moving(self._options)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_available_now = True

    @without_frames
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begun = StreamOffset.from_json(start)
        if self._target is None:
            self._latest = self._latest_offset(begun)
            if self._is_available_now:
                self._target = self._latest
        if self._is_empty_due and start == self._initial:
            self._is_empty_due = False
            return start
        assert self._latest is not None
        if isinstance(limit, ReadAllAvailable):
            return self._latest.to_json()
        return self._limited(begun, self._latest, limit).to_json()

    def reportLatestOffset(self) -> Json | None:
        return None if self._latest is None else self._latest.to_json()

    @without_frames
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        if self._is_empty_due and start == self._initial:
            # The query restarted before the empty batch was done: the batch stays empty.
            return []
        begun, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        lookup = self._asking()
        assigned = lookup.assigned(begun.topics | until.topics, must_exist=False)
        firsts = lookup.earliest(unknown_first_offsets(begun, until))
        plan = plan_batch(begun, until, firsts, assigned.topic_ids)
        self._ranges.report_losses(plan.losses)
        return self._ranges.tasks(plan.ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.batches(partition)

    def _asking(self) -> OffsetLookup:
        if self._lookup is None:
            self._lookup = OffsetLookup(self._options)
        return self._lookup

    def _latest_offset(self, begun: StreamOffset) -> StreamOffset:
        lookup = self._asking()
        assigned = lookup.assigned(begun.topics, must_exist=False)
        there = StreamOffset(offsets={}, topic_ids=assigned.topic_ids)
        at_least = {
            partition: offset
            for partition, offset in begun.offsets.items()
            if not is_recreated(begun, there, partition.topic)
        }
        latest = lookup.latest(assigned.partitions, at_least)
        return StreamOffset(offsets=latest, topic_ids=assigned.topic_ids)

    def _limited(self, begun: StreamOffset, latest: StreamOffset, limit: ReadLimit) -> StreamOffset:
        firsts = self._asking().earliest(unknown_first_offsets(begun, latest))
        starts = {**begun.offsets, **firsts}
        ends = {p: offset for p, offset in latest.offsets.items() if p in starts}
        if self._is_held_back(starts, ends):
            return begun
        if isinstance(limit, ReadMaxRows):
            ends = limit_offsets(starts, ends, limit.max_rows)
        return StreamOffset(offsets=ends, topic_ids=latest.topic_ids)

    def _is_held_back(self, starts: Offsets, ends: Offsets) -> bool:
        """Return whether ``minOffsetsPerTrigger`` delays the batch: it has too few offsets and may
        wait.

        A query with Trigger.AvailableNow never waits.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._is_available_now:
            return False
        now_s = time.monotonic()
        came = sum(max(end - starts[partition], 0) for partition, end in ends.items())
        is_late = (
            self._batch_at_s is None
            or (now_s - self._batch_at_s) * 1000 >= self._options.max_trigger_delay_ms
        )
        if came < least and not is_late:
            return True
        self._batch_at_s = now_s
        return False


def _is_moving(options: SourceOptions) -> bool:
    """Return whether the start of a new query depends on the time of the lookup."""
    match options.starting:
        case AtOffset(offset=offset):
            return offset == LATEST
        case AtOffsets(offsets=offsets):
            return LATEST in offsets.values()
        case AtTime() | AtTimes():
            return options.starts_latest_without_match
