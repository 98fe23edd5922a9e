"""``carry_out`` of flush plans."""

from __future__ import annotations

from errno import ENOSPC

import pytest

from kraftjbod.storage.log.log_values import FlushPlan, carry_out
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind, kind_of_failure
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs


@pytest.mark.parametrize("kind", ["sync", "sync_dir"])
def test_flush_plan_carry_out_reports_any_error_as_a_failed_flush(kind: str) -> None:
    vfs = FaultVfs(MemVfs())
    vfs.make_dirs("/t")
    plan = FlushPlan((vfs.open("/t/0.log", OpenMode.CREATE),), "/t", 5, 0)
    carry_out(vfs, [plan], lambda: None)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({kind})))
    with pytest.raises(OSError) as caught:
        carry_out(vfs, [plan], lambda: None)
    assert kind_of_failure(caught.value, OpKind.APPEND) is OpKind.FLUSH


def test_flush_plan_carry_out_reports_progress_after_each_fsync() -> None:
    """The stall watch distinguishes a long flush from a hung one by its progress."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    files = tuple(vfs.open(f"/t/{name}.log", OpenMode.CREATE) for name in range(3))
    beats: list[int] = []
    carry_out(vfs, [FlushPlan(files, "/t", 5, 0, ("/t/0.log",))], lambda: beats.append(1))
    assert len(beats) == 5
