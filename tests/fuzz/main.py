"""``python -m tests.fuzz.main --frames 1000000 --seed 7``: a long fuzz run that prints figures."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from tests.fuzz import campaign
from tests.fuzz.flood import Figures, rate


@click.command()
@click.option("--frames", default=1_000_000, show_default=True)
@click.option("--seed", default=None, type=int, help="Drawn if not given.")
@click.option("--connections", default=8, show_default=True, help="Connections per daemon.")
@click.option("--brokers", default=2, show_default=True)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Folder of the daemons' files.")
def main(
    frames: int, seed: int | None, connections: int, brokers: int, run_dir: Path | None
) -> None:
    """Flood a new cluster with generated and spoilt requests, and report its failures."""
    if seed is None:
        seed = time.time_ns() % 1_000_000
    begun = time.monotonic()

    def progress(figures: Figures) -> None:
        click.echo(f"{figures.frames} frames, {rate(figures, begun):.0f} per second", err=True)

    verdict = campaign.run(
        seed,
        frames,
        connections=connections,
        brokers=brokers,
        run_dir=run_dir,
        on_progress=progress,
    )
    click.echo(verdict.in_words())
    again = f"FRAMES={frames} SEED={seed} ARGS='--connections {connections} --brokers {brokers}'"
    click.echo(f"again: make fuzz {again}")
    sys.exit(bool(verdict.failures))


if __name__ == "__main__":
    main()
