"""The tour's jobs: in a process that cannot start, and in one that the tour leaves early."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from kraftjbod.tour.job_session import JobFailedError, JobSession
from tests.spark.running import LONGEST_S

pytestmark = pytest.mark.timeout(300)


def test_job_session_reports_failed_start_when_a_job_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")

    async def tour() -> None:
        async with JobSession(tmp_path / "log") as jobs:
            await jobs.start()
            for _ in range(2):
                with pytest.raises(JobFailedError, match="cannot write Spark's launcher of Java"):
                    await jobs.answer(jobs.ask("report"))

    asyncio.run(tour())


def test_job_session_of_interrupted_tour_ends_java(tmp_path: Path) -> None:
    """A job that fails has an error with its reason, and leaves the session to the next job."""
    before = psutil.Process().children(recursive=True)
    children: list[psutil.Process] = []

    async def tour() -> None:
        async with JobSession(tmp_path / "log") as jobs:
            await jobs.start()
            for _ in range(2):
                with pytest.raises(JobFailedError, match=r"^report: .* holds none of the tables"):
                    await jobs.answer(jobs.ask("report", "--tables", str(tmp_path)))
            now = psutil.Process().children(recursive=True)
            children.extend(child for child in now if child not in before)
            # Java uses its fast start, because the jobs are short.
            assert any("-XX:TieredStopAtLevel=1" in child.cmdline() for child in children)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(tour())
    _, alive = psutil.wait_procs(children, timeout=LONGEST_S)
    assert alive == []
