"""Spark plans equal the plans of one process, on drawn clusters."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kraftjbod.balance.cluster_planner import plan_cluster
from kraftjbod.balance.placement import LogDir, Replica
from kraftjbod.spark.plan import spark_plan
from kraftjbod.spark.tables.schemas import LOG_DIRS, REPLICAS
from tests.unit.balance.clusters import drawn_cluster

# Clusters with drains, limits, running moves and several rounds between brokers.
SEEDS = (4, 6)


def test_snapshot_values_have_the_columns_of_the_plan_tables() -> None:
    assert list(LogDir._fields) == LOG_DIRS.fieldNames()
    assert list(Replica._fields) == REPLICAS.fieldNames()


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_plan_equals_plan_of_one_process(spark: SparkSession, seed: int) -> None:
    dirs, replicas, request = drawn_cluster(seed)
    steps: list[str] = []
    here = plan_cluster(dirs, replicas, request, steps.append)
    reported: list[str] = []
    frames = spark_plan.as_tables(spark, dirs, replicas)
    with spark_plan.made_plan(*frames, request, reported.append) as plan:
        assert sorted(map(tuple, plan.moves.collect())) == sorted(map(tuple, here.moves))
        assert plan.dirs == here.dirs
        assert plan.counts == here.counts
        there = sorted(plan.partitions)
    assert [tuple(map(_plain, one)) for one in there] == [
        tuple(map(_plain, one)) for one in here.partitions
    ]
    assert reported == steps


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
