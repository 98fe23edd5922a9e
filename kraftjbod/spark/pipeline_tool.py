"""WIRE. ``kraftjbod-pipeline``: jobs on Spark over topics and storage state.

Each job is imported on first use, so that ``--help`` does not wait for Spark.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

from kraftjbod.cli.terminal.command import ToolGroup, tool_group

_INSTALLATION: Final = (
    "The pipeline needs Spark, which is not installed here: run `make spark` in a checkout, or "
    "`pip install kraftjbod[spark]`."
)
#: Help text by job. Its command is ``command`` in ``kraftjbod.spark.<job>.<job>_job``.
JOBS: Final = {
    "ingest": "Write topics to a Parquet table, each record exactly once.",
    "telemetry": "Write usage, rates and forecasts of log directories to tables.",
    "plan": "Plan moves that balance directories, brokers and racks.",
    "audit": "Compare acknowledged records with the records of topics.",
    "report": "Write an HTML page about the cluster's storage.",
    "session": "Run several of these jobs in one Spark session.",
}


def job_named(name: str) -> click.Command | None:
    """Return the command of the job ``name``; None for an unknown name.

    :raises click.ClickException: Spark is not installed.
    """
    if name not in JOBS:
        return None
    try:
        module = importlib.import_module(f"kraftjbod.spark.{name}.{name}_job")
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] == "kraftjbod":
            raise
        raise without_spark(e) from e
    command: click.Command = module.command
    return command


def without_spark(error: ModuleNotFoundError) -> click.ClickException:
    """Return the error for a missing dependency of the extra ``spark``, with installation
    instructions."""
    return click.ClickException(f"{_INSTALLATION} (missing: {error.name})")


class _Jobs(ToolGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return job_named(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@tool_group(
    _Jobs,
    epilog="`kraftjbod-pipeline JOB --help` lists a job's options.",
)
def main() -> None:
    """Jobs on Spark over topics and storage state."""


if __name__ == "__main__":
    main(prog_name="kraftjbod-pipeline")
