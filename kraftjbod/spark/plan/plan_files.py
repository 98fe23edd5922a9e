"""WIRE. Writes the files of a plan: the reassignment and its rollback, and two tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kraftjbod.balance.cluster_planner import ClusterPlan, Reassigned
from kraftjbod.balance.plan_summary import PlannedDir
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentPlan, Replica
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.tables.local_tables import publish_rows

#: Arrow types of ``PLAN_DIRS`` and ``PLAN_MOVES`` (tables/schemas.py), usable without Spark.
DIR_COLUMNS: Final = {
    "broker_id": "int32",
    "rack": "string",
    "path": "string",
    "total_bytes": "int64",
    "bytes_before": "int64",
    "bytes_after": "int64",
    "write_rate_before": "float64",
    "write_rate_after": "float64",
    "replicas_before": "int64",
    "replicas_after": "int64",
}
MOVE_COLUMNS: Final = {
    "topic": "string",
    "partition": "int32",
    "from_broker": "int32",
    "from_path": "string",
    "to_broker": "int32",
    "to_path": "string",
    "size_bytes": "int64",
    "write_rate": "float64",
}


def write_files(partitions: Iterable[Reassigned], out: Path, rollback_out: Path | None) -> int:
    """Write the reassignment to ``out`` and its rollback to ``rollback_out``.

    :param rollback_out: None to write no rollback.
    :returns: the number of reassigned partitions.
    """
    new: dict[TopicPartition, tuple[int, ...]] = {}
    old: dict[TopicPartition, tuple[int, ...]] = {}
    new_dirs: dict[Replica, str] = {}
    old_dirs: dict[Replica, str] = {}
    for one in partitions:
        partition = TopicPartition(one.topic, one.partition)
        for replicas, log_dirs, brokers, paths in (
            (new, new_dirs, one.brokers, one.log_dirs),
            (old, old_dirs, one.brokers_before, one.log_dirs_before),
        ):
            replicas[partition] = tuple(brokers)
            for broker, path in zip(brokers, paths, strict=True):
                if path is not None:
                    log_dirs[Replica(broker, *partition)] = path
    _write(out, ReassignmentPlan(replicas=new, log_dirs=new_dirs))
    if rollback_out is not None:
        _write(rollback_out, ReassignmentPlan(replicas=old, log_dirs=old_dirs))
    return len(new)


def _write(path: Path, plan: ReassignmentPlan) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.as_json() + "\n", encoding="utf-8")


def dir_row(one: PlannedDir) -> dict[str, Any]:
    """Return ``one`` as a row of the table ``plan_dirs``."""
    return {
        "broker_id": one.broker_id,
        "rack": one.rack,
        "path": one.path,
        "total_bytes": one.load.total_bytes,
        "bytes_before": one.bytes_before,
        "bytes_after": one.bytes_after,
        "write_rate_before": one.write_rate_before,
        "write_rate_after": one.write_rate_after,
        "replicas_before": one.replicas_before,
        "replicas_after": one.replicas_after,
    }


def publish_plan(plan: ClusterPlan, tables: Path) -> None:
    """Write the newest generations of the tables ``plan_dirs`` and ``plan_moves``.

    :param tables: folder of the tables.
    :raises ModuleNotFoundError: pyarrow is missing.
    """
    dirs = [tuple(dir_row(one).values()) for one in plan.dirs]
    publish_rows(dirs, DIR_COLUMNS, tables / "plan_dirs")
    moves = [one[: len(MOVE_COLUMNS)] for one in plan.moves]
    publish_rows(moves, MOVE_COLUMNS, tables / "plan_moves")
