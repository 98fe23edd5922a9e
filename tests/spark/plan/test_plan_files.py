"""The file of a plan, and the one that reverts it."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.balance.cluster_planner import Reassigned
from kraftjbod.cli.reassignment.reassignment_plan import Replica, parse_reassignment
from kraftjbod.spark.plan.plan_files import write_files


def test_write_files_omits_unknown_directories(tmp_path: Path) -> None:
    moved = Reassigned("t", 0, (5, 3), (None, "/b"), (5, 1), (None, "/a"))
    out, back = tmp_path / "new" / "plan.json", tmp_path / "back.json"
    assert write_files([moved], out, back) == 1
    new, old = (parse_reassignment(path.read_text()) for path in (out, back))
    assert new.replicas[moved[:2]] == (5, 3) and old.replicas[moved[:2]] == (5, 1)
    assert new.log_dirs == {Replica(3, "t", 0): "/b"}
    assert old.log_dirs == {Replica(1, "t", 0): "/a"}
