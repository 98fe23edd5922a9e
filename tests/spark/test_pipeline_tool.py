"""``kraftjbod-pipeline`` as its users see it before a job runs."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from kraftjbod.spark.pipeline_tool import JOBS
from tests.checkout import ROOT
from tests.spark.running import environment, run, run_python

TOOL = str(ROOT / "bin" / "kraftjbod-pipeline")


def test_help_names_every_job_without_import_of_spark() -> None:
    script = (
        "import sys\n"
        "from kraftjbod.spark.pipeline_tool import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print('pyspark' in sys.modules)"
    )
    done = run_python("-c", script)
    *printed, has_spark = done.stdout.splitlines()
    assert has_spark == "False"
    for job, purpose in JOBS.items():
        assert any(line.split(None, 1) == [job, purpose] for line in printed), job


@pytest.mark.parametrize("job", JOBS)
def test_job_help_has_the_common_options(job: str) -> None:
    done = run(TOOL, job, "--help")
    assert done.stderr == ""
    assert done.stdout.startswith(f"Usage: kraftjbod-pipeline {job} [OPTIONS]\n")
    of_one_job = () if job == "session" else ("--tables", "--json", "--verbose", "Exit codes:")
    for option in ("--master", "--conf", *of_one_job):
        assert option in done.stdout


def test_unknown_job_is_wrong_usage() -> None:
    done = run(TOOL, "compress")
    assert done.returncode == 2
    assert done.stderr == "error: No such command 'compress'. (kraftjbod-pipeline --help)\n"


@pytest.fixture(scope="module")
def sparkless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python with all our packages except Spark."""
    folder = tmp_path_factory.mktemp("packages")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not package.name.startswith("pyspark") and package.suffix != ".pth":
            (folder / package.name).symlink_to(package)
    return environment(PYTHONPATH=f"{ROOT}:{folder}")


@pytest.mark.parametrize("words", [("ingest",), ("plan", "--from-tables")])
def test_job_without_spark_explains_its_installation(
    sparkless: dict[str, str], words: tuple[str, ...]
) -> None:
    done = run_python("-S", "-m", "kraftjbod.spark.pipeline_tool", *words, env=sparkless)
    assert done.returncode == 1
    assert done.stderr == (
        "error: The pipeline needs Spark, which is not installed here: run `make spark` in a "
        "checkout, or `pip install kraftjbod[spark]`. (missing: pyspark)\n"
    )


def test_plan_without_tables_needs_no_spark(sparkless: dict[str, str], tmp_path: Path) -> None:
    missing = tmp_path / "client.properties"
    words = ("plan", "--bootstrap-server", "127.0.0.1:1", "--command-config", str(missing))
    done = run_python("-S", "-m", "kraftjbod.spark.pipeline_tool", *words, env=sparkless)
    assert done.stderr.splitlines()[0] == "• looking at the brokers, for 5 s"
    assert f"error: plan: cannot read {missing}" in done.stderr
