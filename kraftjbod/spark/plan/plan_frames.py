"""FRAME. Plans moves on executors, broker by broker, for clusters of any size.

The frames, in order::

    dirs      one row per directory, with its role in the plan             (directories)
    placed    one row per replica, at its current or future place          (placed)
    sums      dirs with the sums of their replicas                         (sums)
    crossings replicas that change brokers, without a directory yet        (crossings)
    moves     all moves, with their target directories                     (moves)

The rules are those of ``balance``. Rules for one broker are called there
(balance/group_plans.py). Rules for all brokers (balance/placement.py) are repeated as frames, and a
test compares both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kraftjbod.balance.fair_shares import DirLoad, Goals
from kraftjbod.balance.group_plans import (
    Home,
    Move,
    Rank,
    crossings_of_broker,
    limited_move,
    moves_of_broker,
)
from kraftjbod.balance.placement import SAFE_SHARE, Drain, Placed
from kraftjbod.balance.plan_limits import LimitedMove, within_limits
from kraftjbod.balance.planner import Tier
from kraftjbod.balance.transfer_planner import DirSums, Racks, Task
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.spark.plan.plan_tables import (
    CROSSINGS,
    DIRECTORY,
    DIRS,
    MOVES,
    PARTITION,
    PLACED,
    RANK,
    REASSIGNED,
    REPLICA,
    SENT,
    SUMS,
    as_table,
)
from kraftjbod.spark.tables.schemas import PLAN_DIRS, PLAN_MOVES

#: Number of moves per Arrow batch after limiting.
_MOVES_AT_ONCE: Final = 10_000


def directories(log_dirs: DataFrame, drains: Collection[Drain] = ()) -> DataFrame:
    """``log_dirs`` with the role of each directory in the plan."""
    online, saturated = LogDirState.ONLINE.value, LogDirState.SATURATED.value
    judged = (
        log_dirs.withColumn("is_drained", _any(_is_drained(drain) for drain in drains))
        .withColumn("gives", F.col("state").isin(online, saturated))
        .withColumn(
            "takes", (F.col("state") == online) & ~F.col("is_cordoned") & ~F.col("is_drained")
        )
        .withColumn(
            "spare_bytes", F.when(F.col("takes"), F.floor(F.col("free_bytes") * SAFE_SHARE))
        )
    )
    return as_table(judged.fillna(0, ["spare_bytes"]), DIRS)


def placed(replicas: DataFrame, dirs: DataFrame) -> DataFrame:
    """Each replica once. Moves in progress count as done; their replicas are not moved again."""
    future = replicas.where("is_future").select(
        *REPLICA,
        F.col("path").alias("future_path"),
        F.col("size_bytes").alias("future_bytes"),
    )
    current = replicas.where("NOT is_future")
    moving = current.join(future, [*REPLICA], "left")
    arriving = (
        replicas.where("is_future")
        .join(current.select(*REPLICA), [*REPLICA], "left_anti")
        .withColumn("future_path", F.col("path"))
        .withColumn("future_bytes", F.col("size_bytes"))
    )
    both = moving.unionByName(arriving)
    settled = (
        both.withColumn("is_fixed", F.col("future_path").isNotNull())
        .withColumn("pending_bytes", F.greatest(F.lit(0), F.expr("size_bytes - future_bytes")))
        .withColumn("size_bytes", F.greatest("size_bytes", "future_bytes"))
        .withColumn("path", F.coalesce("future_path", "path"))
    )
    roles = dirs.select(*DIRECTORY, "gives", "is_drained")
    known = settled.join(F.broadcast(roles), [*DIRECTORY], "left")
    is_assigned = F.coalesce(F.array_contains("brokers", F.col("broker_id")), F.lit(False))
    judged = known.withColumn(
        "is_movable", F.expr("NOT is_fixed AND gives IS TRUE") & is_assigned
    ).withColumn("must_leave", F.expr("is_movable AND is_drained"))
    return as_table(judged.fillna(0, ["pending_bytes", "write_rate"]), PLACED)


def sums(dirs: DataFrame, placed: DataFrame) -> DataFrame:
    """Each directory with the sums of its replicas; incoming moves use space at once."""
    fixed = F.expr("NOT is_movable")
    held = placed.groupBy(*DIRECTORY).agg(
        F.sum("size_bytes").alias("size_bytes"),
        F.sum(F.when(fixed, F.col("size_bytes"))).alias("fixed_bytes"),
        F.sum("pending_bytes").alias("pending_bytes"),
        F.sum("write_rate").alias("write_rate"),
        F.sum(F.when(fixed, F.col("write_rate"))).alias("fixed_rate"),
        F.count(F.lit(1)).alias("replicas"),
        F.max("size_bytes").alias("largest_bytes"),
    )
    figures = [name for name in held.columns if name not in DIRECTORY]
    joined = dirs.join(held, [*DIRECTORY], "left").fillna(0, figures)
    left = joined.withColumn(
        "spare_bytes", F.greatest(F.lit(0), F.expr("spare_bytes - pending_bytes"))
    )
    return as_table(left, SUMS)


# --- between brokers -----------------------------------------------------------------------------


def candidates(
    placed: DataFrame, sources: Collection[int], drained: Collection[int], turn: int
) -> DataFrame:
    """Replicas that may leave ``sources``, of each partition only those on one broker.

    A hash of the partition and ``turn`` chooses the broker; ``drained`` brokers have priority.
    """
    urgent = F.filter("brokers", lambda broker: broker.isin(*drained))
    usual = F.filter("brokers", lambda broker: broker.isin(*sources))
    pool = F.when(F.size(urgent) > 0, urgent).otherwise(usual) if drained else usual
    drawn = _drawn(turn) % F.greatest(F.lit(1), F.size("pool"))
    turned = (
        placed.where("is_movable")
        .where(F.col("broker_id").isin(*sources))
        .withColumn("pool", pool)
        .withColumn("owner", F.try_element_at("pool", drawn.cast("int") + 1))
        .where("owner = broker_id")
    )
    return as_table(turned, PLACED)


def crossings(candidates: DataFrame, tasks: Mapping[int, Task], racks: Racks) -> DataFrame:
    """Choose the replicas that each source sends, and their targets, on executors."""
    own_tasks, own_racks = dict(tasks), dict(racks)

    # Spark reads the hints of a plain function, and takes a partial for something else.
    def work(table: pa.Table) -> pa.Table:
        return _choose_for_broker(table, tasks=own_tasks, racks=own_racks)

    chosen = candidates.groupBy("broker_id").applyInArrow(work, CROSSINGS)
    return as_table(chosen, CROSSINGS)


def _drawn(turn: int) -> Column:
    """The value from which :func:`~kraftjbod.balance.group_plans.draw` draws."""
    text = F.concat("topic", F.lit("-"), F.col("partition").cast("string"), F.lit(f"-{turn}"))
    return F.conv(F.substring(F.md5(text), 1, 8), 16, 10).cast("long")


def without(frame: DataFrame, crossings: DataFrame) -> DataFrame:
    """Remove partitions with a crossing from ``frame``: one replica of each may cross, once."""
    taken = crossings.select(*PARTITION)
    return as_table(frame.join(taken, [*PARTITION], "left_anti"), PLACED)


def sent(crossings: DataFrame) -> DataFrame:
    """Return bytes, write rate and number of ``crossings`` by source and target broker."""
    grouped = crossings.groupBy("from_broker", "to_broker").agg(
        F.sum("size_bytes").alias("size_bytes"),
        F.sum("write_rate").alias("write_rate"),
        F.count(F.lit(1)).alias("replicas"),
    )
    return as_table(grouped, SENT)


def _choose_for_broker(table: pa.Table, *, tasks: Mapping[int, Task], racks: Racks) -> pa.Table:
    """Process one group of ``candidates``; runs on executors."""
    rows = list(map(Placed._make, _tuples(table)))
    task = tasks[rows[0].broker_id]
    return _arrow(crossings_of_broker(task, rows, racks), CROSSINGS)


# --- between the directories of a broker ---------------------------------------------------------


def moves(
    placed: DataFrame, sums: DataFrame, goals: Goals, crossings: DataFrame | None = None
) -> DataFrame:
    """All moves; a crossing is dropped if no directory of its target has enough free space."""
    homes = _homes(placed, crossings)

    def work(own: pa.Table, dirs: pa.Table) -> pa.Table:
        return _plan_for_broker(own, dirs, goals=goals)

    planned = homes.groupBy("home").cogroup(sums.groupBy("broker_id")).applyInArrow(work, MOVES)
    return as_table(planned, MOVES)


_HOMES: Final = (
    *PARTITION,
    "home",
    "from_broker",
    "path",
    "size_bytes",
    "write_rate",
    "is_movable",
    "tier",
    "score",
    "step",
)


def _homes(placed: DataFrame, crossings: DataFrame | None) -> DataFrame:
    """Replicas by their future broker; ``tier`` is null for those that do not cross."""
    if crossings is None:
        none = {field.name: F.lit(None).cast(field.dataType) for field in RANK}
        staying = placed.withColumns({**none, "home": F.col("broker_id")})
        return staying.withColumnRenamed("broker_id", "from_broker").select(*_HOMES)
    away = crossings.select(*PARTITION, "from_broker", "to_broker", "tier", "score", "step")
    renamed = placed.withColumnRenamed("broker_id", "from_broker")
    joined = renamed.join(away, [*PARTITION, "from_broker"], "left")
    return joined.withColumn("home", F.coalesce("to_broker", "from_broker")).select(*_HOMES)


def _plan_for_broker(replicas: pa.Table, dirs: pa.Table, *, goals: Goals) -> pa.Table:
    """Plan one broker's replicas and directories; runs on executors."""
    homes = [
        Home._make((*row[:-3], None if row[-3] is None else Rank(*row[-3:])))
        for row in _tuples(replicas.drop_columns(["home"]))
    ]
    places = [dir_sums(row) for row in dirs.to_pylist()]
    return _arrow(moves_of_broker(places, homes, goals), MOVES)


def dir_sums(row: Mapping[str, Any]) -> DirSums:
    """One row of ``sums``."""
    load = DirLoad(**{field.name: row[field.name] for field in fields(DirLoad)})
    rest = {field.name: row[field.name] for field in fields(DirSums) if field.name != "load"}
    return DirSums(load=load, **rest)


# --- results ------------------------------------------------------------------------------------


def limited(moves: DataFrame, most_moves: int | None, most_bytes: int | None) -> DataFrame:
    """The most important moves within the limits, by purpose and by how full the source is.

    Moves to other brokers come before moves within brokers that depend on them. plan_limits.py
    decides which moves are dropped.
    """
    if most_moves is None and most_bytes is None:
        return as_table(moves, MOVES)
    is_within = F.col("from_broker") == F.col("to_broker")
    is_drain = F.col("tier") == int(Tier.DRAIN)
    order = (
        F.when(is_drain, 0).when(~is_within, 1).otherwise(2),
        *("tier", F.col("score").desc(), "from_broker", "to_broker", "step"),
        # Makes the order deterministic.
        *PARTITION,
    )

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _first_of(batches, most_moves, most_bytes)

    one_after_the_other = moves.repartition(1).sortWithinPartitions(*order)
    return as_table(one_after_the_other.mapInArrow(work, MOVES), MOVES)


def _first_of(
    batches: Iterator[pa.RecordBatch], most_moves: int | None, most_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    """Apply the limits to moves in order; runs on one executor."""
    seen: deque[Move] = deque()

    def moves() -> Iterator[LimitedMove]:
        for batch in batches:
            for move in map(Move._make, _tuples(batch)):
                seen.append(move)
                yield limited_move(move)

    made: list[Move] = []
    for is_made in within_limits(moves(), most_moves, most_bytes):
        move = seen.popleft()
        if is_made:
            made.append(move)
        if len(made) == _MOVES_AT_ONCE:
            yield from _arrow(made, MOVES).to_batches()
            made = []
    yield from _arrow(made, MOVES).to_batches()


def plan_moves(moves: DataFrame) -> DataFrame:
    """``moves`` in the schema of the written table."""
    return as_table(moves, PLAN_MOVES)


def plan_dirs(sums: DataFrame, moves: DataFrame) -> DataFrame:
    """Each directory before and after."""
    gone = _ends(moves, "from", "lost")
    come = _ends(moves, "to", "got")
    figures = [name for name in (*gone.columns, *come.columns) if name not in DIRECTORY]
    joined = (
        sums.join(gone, [*DIRECTORY], "left").join(come, [*DIRECTORY], "left").fillna(0, figures)
    )
    named = joined.withColumns(
        {
            "bytes_before": F.col("size_bytes"),
            "bytes_after": F.expr("size_bytes - lost_bytes + got_bytes"),
            "write_rate_before": F.col("write_rate"),
            # Rounding of float sums may give slightly negative values.
            "write_rate_after": F.expr("greatest(0D, write_rate - lost_rate + got_rate)"),
            "replicas_before": F.col("replicas"),
            "replicas_after": F.expr("replicas - lost_replicas + got_replicas"),
        }
    )
    return as_table(named, PLAN_DIRS)


def _ends(moves: DataFrame, end: str, word: str) -> DataFrame:
    return moves.groupBy(
        F.col(f"{end}_broker").alias("broker_id"), F.col(f"{end}_path").alias("path")
    ).agg(
        F.sum("size_bytes").alias(f"{word}_bytes"),
        F.sum("write_rate").alias(f"{word}_rate"),
        F.count(F.lit(1)).alias(f"{word}_replicas"),
    )


def reassigned(placed: DataFrame, moves: DataFrame) -> DataFrame:
    """Partitions with moves, with all of their replicas before and after.

    A new replica takes the position of the replaced one, so the order of preferred leaders stays.
    """
    moving = moves.select(
        *PARTITION, F.col("from_broker").alias("broker_id"), "to_broker", "to_path"
    )
    touched = placed.join(moving.select(*PARTITION).distinct(), [*PARTITION], "left_semi")
    joined = touched.join(moving, [*REPLICA], "left")
    grouped = joined.groupBy(*PARTITION).agg(
        F.first("brokers").alias("brokers_before"),
        _map("broker_id", "path").alias("dirs_before"),
        _map("broker_id", "to_broker").alias("heirs"),
        _map(F.coalesce("to_broker", "broker_id"), F.coalesce("to_path", "path")).alias("dirs"),
    )
    moved = (
        grouped.withColumn(
            "brokers",
            F.transform("brokers_before", lambda b: F.coalesce(F.col("heirs")[b], b)),
        )
        .withColumn("log_dirs", F.transform("brokers", lambda b: F.col("dirs")[b]))
        .withColumn(
            "log_dirs_before", F.transform("brokers_before", lambda b: F.col("dirs_before")[b])
        )
    )
    return as_table(moved, REASSIGNED)


def _map(key: Column | str, value: Column | str) -> Column:
    return F.map_from_entries(F.collect_list(F.struct(key, value)))


def _is_drained(drain: Drain) -> Column:
    broker = F.col("broker_id") == drain.broker_id
    return broker if drain.path is None else broker & (F.col("path") == drain.path)


def _any(conditions: Iterator[Column]) -> Column:
    result = F.lit(False)
    for condition in conditions:
        result = result | condition
    return result


def _tuples(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _arrow(rows: Iterable[tuple[Any, ...]], schema: StructType) -> pa.Table:
    """Convert tuples with the columns of ``schema`` to a table."""
    arrow = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.table(arrays, schema=arrow)
