"""``make sim SEEDS=10000``: simulated clusters, each broken at random from its seed.

``make sim SEED=123`` runs one again; ``ONLY=3,7`` plays these of its faults only. A seed that fails
is shrunk to the fewest faults that still fail, and its story is printed: who did what, and when.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from tests.sim.search.applications.chosen import Kind as Application
from tests.sim.search.faults.schedule import Kind
from tests.sim.search.seed_run import Outcome, run_seed
from tests.sim.search.shrink import shrink
from tests.sim.seed_pool import in_processes

_PROGRESS_S = 30.0
_SHRINK_TRIES = 40


def replay_line(outcome: Outcome, numbers: Sequence[int], options: argparse.Namespace) -> str:
    """Return the command that runs the same again."""
    parts = [f"make sim SEED={outcome.seed}"]
    if len(numbers) < len(outcome.schedule):
        parts.append(f"ONLY={','.join(map(str, numbers))}")
    if options.duration != 20.0:
        parts.append(f"DURATION={options.duration:g}")
    if options.unlimited:
        parts.append("UNLIMITED=1")
    if options.controllers:
        parts.append(f"CONTROLLERS={options.controllers}")
    if options.light:
        parts.append("LIGHT=1")
    if options.applications is not None:
        parts.append(f"APPLICATIONS={','.join(options.applications) or 'none'}")
    if options.kinds is not None:
        parts.append(f"KINDS={','.join(kind.name.lower() for kind in options.kinds)}")
    if options.longest_cut is not None:
        parts.append(f"LONGEST_CUT={options.longest_cut:g}")
    if options.points:
        points = ",".join(f"{name}={least:g}" for name, least in options.points.items())
        parts.append(f"POINTS={points}")
    return " ".join(parts)


def report_failure(outcome: Outcome, options: argparse.Namespace) -> None:
    """Shrink the schedule, and print the story of the remaining faults."""
    print(f"seed {outcome.seed} fails: {outcome.findings[0]}", flush=True)
    numbers = [fault.number for fault in outcome.schedule]
    if options.shrink:
        run = _runner(options)
        numbers = list(
            shrink(
                numbers,
                lambda some: is_same(outcome, run(outcome.seed, numbers=list(some))),
                max_tries=_SHRINK_TRIES,
            )
        )
        outcome_of_few = run(outcome.seed, numbers=numbers)
    else:
        outcome_of_few = outcome
    print("\n".join(outcome_of_few.story[-options.lines :]))
    print(f"FOUND by seed {outcome.seed}, with {len(numbers)} of {len(outcome.schedule)} faults:")
    for finding in outcome_of_few.findings[:10]:
        print(f"  {finding}")
    print(f"run it again: {replay_line(outcome, numbers, options)}", flush=True)


def is_same(one: Outcome, other: Outcome) -> bool:
    """Return whether both broke the same invariant, for any partition and broker."""
    return bool(other.findings) and _invariant_of(other.findings[0]) == _invariant_of(
        one.findings[0]
    )


def _invariant_of(finding: str) -> str:
    return " ".join(re.sub(r"[^a-z ]+", " ", finding).split()[:4])


def _runner(options: argparse.Namespace) -> partial[Outcome]:
    return partial(
        run_seed,
        duration_ms=int(options.duration * 1000),
        keeps_promise=not options.unlimited,
        controllers=options.controllers,
        applications=options.applications,
        is_light=options.light,
        kinds=options.kinds,
        longest_cut_ms=None if options.longest_cut is None else int(options.longest_cut * 1000),
        points=options.points,
    )


class Totals:
    """Summary of all seeds."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        #: CPU time of the processes that ran the seeds; unlike elapsed time it does not depend on
        #: what else the machine does.
        self.cpu_s = 0.0
        self.rotted = self.damages_found = 0
        self.seeds = self.acked = self.virtual_ms = self.longest_heal_ms = 0
        self.played: Counter[Kind] = Counter()
        self.fired: Counter[str] = Counter()
        self.applications: Counter[Application] = Counter()
        self.failed: list[int] = []

    def add(self, outcome: Outcome, cpu_s: float) -> None:
        self.cpu_s += cpu_s
        self.seeds += 1
        self.acked += outcome.acked
        self.virtual_ms += outcome.virtual_ms
        self.longest_heal_ms = max(self.longest_heal_ms, outcome.healed_ms)
        self.played += outcome.played
        self.fired += outcome.fired
        self.rotted += outcome.rotted
        self.damages_found += outcome.damages_found
        self.applications.update(outcome.applications)
        if outcome.findings:
            self.failed.append(outcome.seed)

    def line(self) -> str:
        took_s = time.monotonic() - self.began_s
        return (
            f"{took_s:8.0f} s: {self.seeds} seeds, {sum(self.played.values())} faults, "
            f"{self.acked} records acknowledged, {self.virtual_ms / 1000 / took_s:.1f} virtual "
            f"seconds a second, {self.virtual_ms / 1000 / max(self.cpu_s, 0.001):.1f} a second of "
            f"CPU, {len(self.failed)} failed"
        )

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.played.most_common())
        ran = ", ".join(f"{kind} {count}" for kind, count in self.applications.most_common())
        points = ", ".join(f"{name} {count}" for name, count in self.fired.most_common())
        lines = [self.line(), f"faults: {kinds}", f"applications: {ran}"]
        lines.append(f"points that fired: {points or 'none'}")
        lines.append(f"longest time to heal after the last fault: {self.longest_heal_ms / 1000} s")
        lines.append(f"bits that rotted: {self.rotted}, noticed {self.damages_found} times")
        if self.failed:
            lines.append(f"failed seeds: {' '.join(map(str, sorted(self.failed)))}")
        return lines


def _outcomes(seeds: Sequence[int], options: argparse.Namespace) -> Iterable[tuple[Outcome, float]]:
    play = partial(_played, _runner(options))
    if len(seeds) == 1:
        return map(play, seeds)
    return in_processes(play, seeds, jobs=options.jobs)


def _played(run: partial[Outcome], seed: int) -> tuple[Outcome, float]:
    """Run ``seed`` and return its outcome and the CPU seconds that it took.

    One garbage collection at the end replaces those between the steps of a world, which cost an
    eighth.
    """
    began_s = time.process_time()
    outcome = run(seed)
    gc.collect()
    return outcome, time.process_time() - began_s


def _applications(text: str) -> list[Application]:
    return [] if text == "none" else [Application(one) for one in text.split(",")]


def _kinds(text: str) -> list[Kind]:
    return [Kind[name.upper()] for name in text.split(",")]


def _points(text: str) -> dict[str, float]:
    pairs = (one.split("=") for one in text.split(","))
    return {name: float(least) for name, least in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, help="the only one, or the first")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--only", help="numbers of the faults to play, as 3,7")
    parser.add_argument("--duration", type=float, default=20.0, help="virtual seconds of faults")
    parser.add_argument("--unlimited", action="store_true", help="more faults than are survived")
    parser.add_argument("--controllers", type=int, help="how many vote; 1, 3 or 5 by the seed")
    parser.add_argument(
        "--applications", type=_applications, help="such as group,copies, or none; or by the seed"
    )
    parser.add_argument("--kinds", type=_kinds, help="the only kinds of faults, as rot,kill")
    parser.add_argument(
        "--longest-cut", type=float, help="virtual seconds of network partitions; by the seed"
    )
    parser.add_argument(
        "--points",
        type=_points,
        default={},
        help="lower limits of probabilities, as raft.late_tick=0.5,core.short_slice=0.1",
    )
    parser.add_argument("--light", action="store_true", help="small clusters, a light load")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--lines", type=int, default=400, help="of the story of a failure")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--stop", action="store_true", help="at the first failure")
    options = parser.parse_args()
    first = int(time.time()) % 1_000_000 if options.seed is None else options.seed
    count = options.seeds or (1 if options.seed is not None else 100)
    if options.only:
        outcome = _runner(options)(first, numbers=[int(one) for one in options.only.split(",")])
        print("\n".join([*outcome.story[-options.lines :], *outcome.findings, outcome.trace_hash]))
        sys.exit(1 if outcome.findings else 0)
    sys.exit(run(range(first, first + count), options))


def run(seeds: range, options: argparse.Namespace) -> int:
    print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    totals, next_s = Totals(), _PROGRESS_S
    for outcome, cpu_s in _outcomes(seeds, options):
        totals.add(outcome, cpu_s)
        if outcome.findings:
            report_failure(outcome, options)
            if options.stop:
                break
        if time.monotonic() - totals.began_s > next_s:
            next_s += _PROGRESS_S
            print(totals.line(), flush=True)
    print("\n".join(totals.lines()), flush=True)
    if len(seeds) == 1 and not totals.failed:
        print(f"trace {outcome.trace_hash}")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    main()
