"""WIRE. ``kraftjbod-gameday``: inject a fault into a test cluster under load, measure the effect.

The tool writes at a steady rate, breaks a disk, a broker or a controller, restores it, reads all
records back, and judges the result.
With ``--observe`` it injects no fault: it measures while the operator of any Kafka cluster does.

Exit code 0: good. 1: a gap above its limit, records lost, doubled or out of order, or an error.
2: wrong usage. 130, 143: interrupted or terminated, with everything undone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    ClusterAddress,
    connection_options,
    report,
    tool,
)
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.gameday.faults.broker_kill import BrokerKill, BrokerPause
from kraftjbod.gameday.faults.cold_reader import ColdReader
from kraftjbod.gameday.faults.controller_faults import (
    ControllerDisk,
    ControllerKill,
    ControllerPause,
)
from kraftjbod.gameday.faults.disk_faults import DeadDisk, MountedDisk
from kraftjbod.gameday.faults.fault import CannotPlay, Fault
from kraftjbod.gameday.faults.host_loss import BrokerHostLoss, ControllerHostLoss
from kraftjbod.gameday.faults.rolling_restart import RollingRestart
from kraftjbod.gameday.faults.successive_failures import SuccessiveFailures
from kraftjbod.gameday.outcome import LeftOut, Outcome, report_document
from kraftjbod.gameday.outcome_tables import print_outcome, print_summary
from kraftjbod.gameday.scenario_run import ScenarioRun, Settings
from kraftjbod.gameday.scenarios import (
    MAX_GAP_MS,
    MAX_METADATA_GAP_MS,
    OBSERVE,
    SCENARIOS,
    Phases,
)
from kraftjbod.gameday.timeline_svg import draw_timeline
from kraftjbod.testing.faults import DiskFault

_ALL: Final = "all"
_TOPIC: Final = "gameday"
#: Limit of an observation, since acknowledgements and read records are kept in memory.
_MAX_OBSERVE_S: Final = 1800.0
_SECONDS = click.FloatRange(min=0.1, max=600)


@tool(help=(__doc__ or "").removeprefix("WIRE. ").replace("`", ""))
@connection_options
@click.option("--scenario", type=click.Choice([*SCENARIOS, _ALL]), help="Scenario to run.")
@click.option(
    "--observe", is_flag=True, help="Only measure, without a fault. Ctrl-C ends the measurement."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1, max=_MAX_OBSERVE_S),
    default=600.0,
    show_default=True,
    help="With --observe: maximum duration.",
)
@click.option(
    "--topic",
    help=f"A name for the topics that are made and removed again ({_TOPIC}); with --observe one "
    "that exists, to write into.",
)
@click.option("--partitions", type=click.IntRange(1, 200), default=12, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=10_000),
    default=50.0,
    show_default=True,
    help="Records a second, for each partition.",
)
@click.option("--record-bytes", type=click.IntRange(64, 100_000), default=200, show_default=True)
@click.option(
    "--before-seconds",
    type=_SECONDS,
    default=4.0,
    show_default=True,
    help="Duration of the load before a fault.",
)
@click.option(
    "--fault-seconds",
    type=_SECONDS,
    default=8.0,
    show_default=True,
    help="Minimum duration of a fault; it also lasts until it is noticed.",
)
@click.option(
    "--after-seconds",
    type=_SECONDS,
    default=3.0,
    show_default=True,
    help="Duration of the load after the recovery.",
)
@click.option(
    "--backlog-mb",
    type=click.IntRange(1, 1_000_000),
    default=256,
    show_default=True,
    help="With cold-reader: megabytes that the consumer reads. The disks "
    "store three times as much.",
)
@click.option(
    "--max-gap-ms",
    type=click.IntRange(min=1),
    help="The longest gap that is good. By default "
    + ", ".join(f"{name} {limit}" for name, limit in MAX_GAP_MS.items())
    + ".",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, allow_dash=True, writable=True, path_type=Path),
    help="File for the report as JSON; - is standard output, which then has nothing else.",
)
@click.option(
    "--svg",
    "svg_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="File for the timeline.",
)
def main(
    cluster: ClusterAddress,
    scenario: str | None,
    observe: bool,
    seconds: float,
    topic: str | None,
    partitions: int,
    rate: float,
    record_bytes: int,
    before_seconds: float,
    fault_seconds: float,
    after_seconds: float,
    backlog_mb: int,
    max_gap_ms: int | None,
    json_path: Path | None,
    svg_path: Path | None,
) -> None:
    if observe == (scenario is not None):
        raise click.UsageError("say either --scenario or --observe")
    phases = Phases(before_s=before_seconds, fault_s=fault_seconds, after_s=after_seconds)
    gameday = GameDay(
        settings=Settings(
            bootstrap_servers=cluster.bootstrap_server,
            topic=topic or _TOPIC,
            partitions=partitions,
            rate=rate,
            record_bytes=record_bytes,
            phases=phases,
        ),
        observe_s=seconds,
        backlog_bytes=backlog_mb * 1_000_000,
        is_own_topic=scenario is not None or topic is None,
        max_gap_ms=max_gap_ms,
    )
    scenarios = SCENARIOS if scenario == _ALL else (scenario or OBSERVE,)
    try:
        ended_by = asyncio.run(_until_signal(gameday, cluster, scenarios))
    except KraftJbodError:
        # Report the scenarios that completed before a failure.
        if gameday.outcomes:
            gameday.report(json_path, svg_path)
        raise
    gameday.report(json_path, svg_path)
    if ended_by is not None:
        sys.exit(128 + ended_by)
    sys.exit(0 if gameday.is_good else 1)


async def _until_signal(
    gameday: GameDay, cluster: ClusterAddress, scenarios: tuple[str, ...]
) -> int | None:
    """Play until done or until a signal. Return the signal; faults are undone by then."""
    ended_by: list[int] = []
    playing = asyncio.create_task(gameday.play(cluster, scenarios))

    def end(signum: int) -> None:
        if gameday.stop_watching():
            return
        # Ignore further signals, since undoing has its own time limits.
        if not ended_by:
            ended_by.append(signum)
            playing.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, end, signum)
    with suppress(asyncio.CancelledError):
        await playing
    return ended_by[0] if ended_by else None


@dataclass(slots=True, kw_only=True)
class GameDay:
    """Plays scenarios in sequence, and collects their outcomes for one report.

    ``observe_s`` is the duration of an observation, and ``backlog_bytes`` the size of the topic
    that a cold reader reads. ``is_own_topic``: each scenario has its own topic. ``max_gap_ms``
    replaces the limits of all scenarios; None: each has its own.
    """

    settings: Settings
    observe_s: float
    backlog_bytes: int
    is_own_topic: bool
    max_gap_ms: int | None
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    _stop: asyncio.Event | None = None

    @property
    def is_good(self) -> bool:
        return bool(self.outcomes) and all(not outcome.complaints for outcome in self.outcomes)

    def stop_watching(self) -> bool:
        """Let a running observation end early; return False if none runs or it was stopped
        already."""
        if self._stop is None or self._stop.is_set():
            return False
        self._stop.set()
        return True

    async def play(self, cluster: ClusterAddress, scenarios: tuple[str, ...]) -> None:
        """Play the scenarios in order; leave out those that this cluster cannot play.

        :raises CannotPlay: the only scenario cannot be played here.
        :raises KraftJbodError: a scenario failed. The remaining scenarios are not played.
        """
        async with cluster.connect(patience_ms=PATIENCE_MS) as client:
            for scenario in scenarios:
                try:
                    self.outcomes.append(await self._play_one(client, scenario))
                except CannotPlay as e:
                    if len(scenarios) == 1:
                        raise
                    self.left_out.append(LeftOut(scenario=scenario, reason=str(e)))

    async def _play_one(self, client: ClusterClient, scenario: str) -> Outcome:
        limit_ms = self.max_gap_ms or MAX_GAP_MS[scenario]
        named = f"{self.settings.topic}-{scenario}" if self.is_own_topic else self.settings.topic
        run = ScenarioRun(
            replace(self.settings, topic=named),
            scenario=scenario,
            run=secrets.token_hex(4),
            limit_ms=limit_ms,
            metadata_limit_ms=MAX_METADATA_GAP_MS.get(scenario),
            report=report,
        )
        if scenario != OBSERVE:
            return await run.play(client, self._faults(run)[scenario]())
        self._stop = asyncio.Event()
        return await run.observe(
            client, seconds=self.observe_s, stop=self._stop, is_own=self.is_own_topic
        )

    def _faults(self, run: ScenarioRun) -> dict[str, Callable[[], Fault]]:
        return {
            "dead-disk": DeadDisk,
            "full-disk": lambda: MountedDisk(DiskFault.FULL),
            "hung-disk": lambda: MountedDisk(DiskFault.HANG),
            "slow-disk": lambda: MountedDisk(DiskFault.SLOW),
            "broker-kill": BrokerKill,
            "broker-pause": BrokerPause,
            "controller-kill": ControllerKill,
            "controller-pause": ControllerPause,
            "controller-disk": ControllerDisk,
            "host-loss": BrokerHostLoss,
            "controller-host-loss": ControllerHostLoss,
            "rolling-restart": lambda: RollingRestart(run.mark),
            "successive-failures": lambda: SuccessiveFailures(run.mark),
            "cold-reader": lambda: ColdReader(
                self.settings.bootstrap_servers, run.mark, backlog_bytes=self.backlog_bytes
            ),
        }

    def report(self, json_path: Path | None, svg_path: Path | None) -> None:
        """Print the tables and write the requested files, also after an early end."""
        to_stdout = json_path is not None and str(json_path) == "-"
        console = Console(stderr=to_stdout)
        for outcome in self.outcomes:
            print_outcome(console, outcome)
        print_summary(console, self.outcomes, self.left_out)
        if json_path is not None:
            text = json.dumps(report_document(self.outcomes, self.left_out), indent=2) + "\n"
            if to_stdout:
                sys.stdout.write(text)
            else:
                json_path.write_text(text, encoding="utf-8")
        if svg_path is not None:
            svg_path.write_text(draw_timeline(self.outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(prog_name="kraftjbod-gameday")
