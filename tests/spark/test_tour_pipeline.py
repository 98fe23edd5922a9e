"""``make run`` with everything: from the first record produced to the report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour.main import main

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    # The tour leaves its daemons running on purpose, and Popen complains when it is forgotten.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_tour_pipeline_runs_all_jobs_from_ingest_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    try:
        assert main(["--run-dir", str(run_dir)]) == 0, capsys.readouterr().out
    finally:
        cluster = ClusterProcesses.load(run_dir)
        assert cluster is None or asyncio.run(cluster.stop()) == []
    printed = json.loads((run_dir / "pipeline.json").read_text())
    [scenario] = json.loads((run_dir / "gameday.json").read_text())["scenarios"]
    records = scenario["acknowledged"]
    # Behind a batch that was in doubt there may be more than was acknowledged.
    assert printed["ingest"]["rows"] >= records
    assert printed["audit"]["acknowledged"] == records
    assert printed["audit"]["missing"] == printed["audit"]["differences_that_count"] == 0
    assert printed["audit"]["replicas"] == 36
    assert printed["plan"]["moves"] > 0
    assert printed["plan"]["skew_now"] < printed["plan"]["before"]["skew"]
    assert "<svg" in (run_dir / "report.html").read_text()
