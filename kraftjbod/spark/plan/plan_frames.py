"""FRAME. Plans moves on executors, broker by broker, for clusters of any size.

The frames, in order::

    placed    one row per replica, at its current or future place          (placed)
    sums      one row per directory that has replicas, with their sums     (sums)
    crossings replicas that change brokers, without a directory yet        (crossings)
    moves     all moves, with their target directories                     (moves)

The rules are those of ``balance``, which the executors call for one broker at a time. This module
only groups, joins and sorts rows. The driver knows all directories, because they are few, and sends
them with the tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kraftjbod.balance.fair_shares import DirLoad, Goals
from kraftjbod.balance.group_plans import (
    ORDER,
    Home,
    Move,
    Rank,
    crossings_of_broker,
    is_candidate,
    limited_move,
    moves_of_broker,
)
from kraftjbod.balance.placement import Placed, Replica, filled_dirs, placed_replicas
from kraftjbod.balance.plan_limits import LimitedMove, within_limits
from kraftjbod.balance.transfer_planner import DirSums, Racks, Task
from kraftjbod.spark.plan.plan_tables import (
    CHANGES,
    CROSSINGS,
    DIRECTORY,
    GROUPS,
    MOVES,
    PARTITION,
    PLACED,
    RANK,
    REPLICA,
    SENT,
    SUMS,
    TOUCHED,
    as_table,
)
from kraftjbod.spark.tables.schemas import REPLICAS

Dirs = Mapping[int, Sequence[DirSums]]
"""Directories by broker."""

#: Number of moves per Arrow batch after limiting.
_MOVES_AT_ONCE: Final = 10_000


def placed(replicas: DataFrame, dirs: Dirs) -> DataFrame:
    """Return ``PLACED``: one row per replica.

    :func:`~kraftjbod.balance.placement.placed_replicas` is called for each broker.

    :param dirs: the directories of the cluster, by broker.
    """

    def work(table: pa.Table) -> pa.Table:
        rows = list(map(Replica._make, _tuples(table)))
        return _arrow(placed_replicas(rows, dirs.get(rows[0].broker_id, ())), PLACED)

    ordered = as_table(replicas, REPLICAS)
    return ordered.groupBy("broker_id").applyInArrow(work, PLACED)


def sums(placed: DataFrame, dirs: Dirs) -> DataFrame:
    """Return ``SUMS``: the directories of brokers that have replicas, with sums over the
    replicas."""

    def work(table: pa.Table) -> pa.Table:
        # The order makes sums of floats reproducible.
        rows = sorted(map(Placed._make, _tuples(table)), key=lambda one: one[:2])
        filled = filled_dirs(dirs.get(rows[0].broker_id, ()), rows)
        return _arrow(map(_sums_row, filled), SUMS)

    return placed.groupBy("broker_id").applyInArrow(work, SUMS)


def _sums_row(one: DirSums) -> tuple[Any, ...]:
    values = asdict(one)
    values |= values.pop("load")
    return tuple(values[name] for name in SUMS.names)


def dir_sums(row: Mapping[str, Any]) -> DirSums:
    """Return one row of ``SUMS`` as :class:`DirSums`."""
    load = DirLoad(**{field.name: row[field.name] for field in fields(DirLoad)})
    rest = {field.name: row[field.name] for field in fields(DirSums) if field.name != "load"}
    return DirSums(load=load, **rest)


# --- between brokers -----------------------------------------------------------------------------


def crossings(
    placed: DataFrame,
    tasks: Mapping[int, Task],
    racks: Racks,
    drained: Collection[int],
    turn: int,
) -> DataFrame:
    """Return ``CROSSINGS``: the replicas that each source broker sends in a turn, and their
    targets.

    :param tasks: the task of each source broker.
    :param drained: brokers that the plan empties.
    :param turn: number of the turn.
    """
    own_tasks, own_racks, own_drained = dict(tasks), dict(racks), frozenset(drained)

    # Spark reads the hints of a plain function, and takes a partial for something else.
    def work(table: pa.Table) -> pa.Table:
        rows = map(Placed._make, _tuples(table))
        found = [one for one in rows if is_candidate(one, own_tasks, own_drained, turn)]
        if not found:
            return _arrow((), CROSSINGS)
        task = own_tasks[found[0].broker_id]
        return _arrow(crossings_of_broker(task, found, own_racks), CROSSINGS)

    of_sources = placed.where(F.col("broker_id").isin(*sorted(own_tasks)))
    return of_sources.groupBy("broker_id").applyInArrow(work, CROSSINGS)


def without(frame: DataFrame, crossings: DataFrame) -> DataFrame:
    """Return the rows of ``frame`` whose partition has no row in ``crossings``.

    Only one replica of a partition may change brokers, and only once.
    """
    taken = crossings.select(*PARTITION)
    return as_table(frame.join(taken, [*PARTITION], "left_anti"), PLACED)


def sent(crossings: DataFrame) -> DataFrame:
    """Return ``SENT``: bytes, write rate and number of ``crossings`` by source and target
    broker."""
    counted = crossings.withColumn("replicas", F.lit(1))
    return as_table(counted.groupBy("from_broker", "to_broker").agg(*_sums_of_moved()), SENT)


def _sums_of_moved() -> list[Column]:
    return [F.sum(name).alias(name) for name in ("size_bytes", "write_rate", "replicas")]


# --- between the directories of a broker ---------------------------------------------------------


def moves(
    placed: DataFrame, dirs: Dirs, goals: Goals, crossings: DataFrame | None = None
) -> DataFrame:
    """Return ``MOVES``: all moves between directories and brokers.

    A crossing is dropped if no directory of its target broker has enough free space.

    :param dirs: directories with the sums of their replicas, by broker.
    """

    def work(table: pa.Table) -> pa.Table:
        broker = table.column("home")[0].as_py()
        homes = [
            Home._make((*row[:-3], None if row[-3] is None else Rank(*row[-3:])))
            for row in _tuples(table.drop_columns(["home"]))
        ]
        return _arrow(moves_of_broker(dirs.get(broker, ()), homes, goals), MOVES)

    return _homes(placed, crossings).groupBy("home").applyInArrow(work, MOVES)


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
    """Return the replicas by future broker ``home``; ``tier`` is null if the broker does not
    change."""
    if crossings is None:
        none = {field.name: F.lit(None).cast(field.dataType) for field in RANK}
        staying = placed.withColumns({**none, "home": F.col("broker_id")})
        return staying.withColumnRenamed("broker_id", "from_broker").select(*_HOMES)
    away = crossings.select(*PARTITION, "from_broker", "to_broker", "tier", "score", "step")
    renamed = placed.withColumnRenamed("broker_id", "from_broker")
    joined = renamed.join(away, [*PARTITION, "from_broker"], "left")
    return joined.withColumn("home", F.coalesce("to_broker", "from_broker")).select(*_HOMES)


# --- results ------------------------------------------------------------------------------------


def limited(moves: DataFrame, most_moves: int | None, most_bytes: int | None) -> DataFrame:
    """Return the first moves within the limits; plan_limits.py decides which moves are dropped.

    :param most_moves: maximum number of moves; None for no limit.
    :param most_bytes: maximum bytes to move; None for no limit.
    """
    if most_moves is None and most_bytes is None:
        return as_table(moves, MOVES)
    order = [F.col(name).desc() if name == "score" else F.col(name) for name in ORDER]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _first_of(batches, most_moves, most_bytes)

    one_after_the_other = moves.repartition(1).sortWithinPartitions(*order)
    return as_table(one_after_the_other.mapInArrow(work, MOVES), MOVES)


def _first_of(
    batches: Iterator[pa.RecordBatch], most_moves: int | None, most_bytes: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the moves within the limits; ``batches`` has the moves in order. Runs in one task."""
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


def changes(moves: DataFrame) -> DataFrame:
    """Return ``CHANGES``: the net bytes, write rate and number of replicas that each directory
    gains."""
    ends = [
        moves.select(
            F.col(f"{end}_broker").alias("broker_id"),
            F.col(f"{end}_path").alias("path"),
            *((F.col(name) * sign).alias(name) for name in ("size_bytes", "write_rate")),
            F.lit(sign).alias("replicas"),
        )
        for end, sign in (("from", -1), ("to", 1))
    ]
    return as_table(
        ends[0].unionByName(ends[1]).groupBy(*DIRECTORY).agg(*_sums_of_moved()), CHANGES
    )


def groups(moves: DataFrame) -> DataFrame:
    """Return ``GROUPS``: numbers and bytes of moves by purpose, and by whether they change
    brokers."""
    grouped = moves.groupBy(
        (F.col("from_broker") != F.col("to_broker")).alias("is_across"), "tier"
    ).agg(F.count(F.lit(1)).alias("moves"), F.sum("size_bytes").alias("size_bytes"))
    return as_table(grouped, GROUPS)


def touched(placed: DataFrame, moves: DataFrame) -> DataFrame:
    """Return ``TOUCHED``: the partitions with moves, the directories of all their replicas, and the
    moves."""
    moving = moves.select(
        *PARTITION, F.col("from_broker").alias("broker_id"), "to_broker", "to_path"
    )
    replicas = placed.join(moving.select(*PARTITION).distinct(), [*PARTITION], "left_semi")
    joined = replicas.join(moving, [*REPLICA], "left")
    grouped = joined.groupBy(*PARTITION).agg(
        F.first("brokers").alias("brokers"),
        _map("broker_id", "path").alias("paths"),
        _map(
            "broker_id", F.when(F.col("to_broker").isNotNull(), F.struct("to_broker", "to_path"))
        ).alias("moves"),
    )
    return as_table(grouped, TOUCHED)


def _map(key: Column | str, value: Column | str) -> Column:
    return F.map_from_entries(F.collect_list(F.struct(key, value)))


def _tuples(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _arrow(rows: Iterable[tuple[Any, ...]], schema: StructType) -> pa.Table:
    """Return tuples with the columns of ``schema`` as an Arrow table."""
    arrow = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.table(arrays, schema=arrow)
