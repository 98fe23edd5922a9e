"""``kraftjbod-pipeline`` as its users see it before any job runs."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from kraftjbod.spark.pipeline_tool import JOBS
from tests.spark.running import ROOT, environment, run, run_python

TOOL = str(ROOT / "bin" / "kraftjbod-pipeline")


def test_the_help_names_every_job_and_does_not_wait_for_spark() -> None:
    script = (
        "import sys\n"
        "from kraftjbod.spark.pipeline_tool import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print('pyspark' in sys.modules)"
    )
    done = run_python("-c", script)
    *told, has_spark = done.stdout.splitlines()
    assert has_spark == "False"
    for job, purpose in JOBS.items():
        assert any(line.split(None, 1) == [job, purpose] for line in told), job


@pytest.mark.parametrize("job", JOBS)
def test_every_job_has_a_help_with_the_options_of_all(job: str) -> None:
    done = run(TOOL, job, "--help")
    assert done.stderr == ""
    assert done.stdout.startswith(f"Usage: kraftjbod-pipeline {job} [OPTIONS]\n")
    of_one_job = () if job == "session" else ("--tables", "--json", "--verbose", "Exit codes:")
    for option in ("--master", "--conf", *of_one_job):
        assert option in done.stdout


def test_an_unknown_job_is_wrong_usage() -> None:
    done = run(TOOL, "compress")
    assert done.returncode == 2
    assert done.stderr == "error: No such command 'compress'. (kraftjbod-pipeline --help)\n"


def test_without_spark_a_job_says_how_to_get_it(tmp_path: Path) -> None:
    """A Python that has all of our packages but Spark."""
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not package.name.startswith("pyspark") and package.suffix != ".pth":
            (tmp_path / package.name).symlink_to(package)
    done = run_python(
        *("-S", "-m", "kraftjbod.spark.pipeline_tool", "ingest"),
        env=environment(PYTHONPATH=f"{ROOT}:{tmp_path}"),
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: The pipeline needs Spark, which is not installed here: run `make spark` in a "
        "checkout, or `pip install kraftjbod[spark]`. (missing: pyspark)\n"
    )
