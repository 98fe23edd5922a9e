"""``make sim-coverage``: which blocks of the product a batch of simulated seeds enters.

A block is one suite of statements inside a function: a function body, or the body of an ``if``,
``else``, ``for``, ``while``, ``with``, ``try``, ``except``, ``finally`` or ``case``. A block counts
as entered once its first statement was executed while a seed ran. What runs while modules are
imported does not count.

``coverage`` collects the executed lines, because it follows greenlets. The lines of each seed are
collected in the worker process that ran it.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import coverage

from tests.sim.search.seed_run import Outcome, run_seed

PACKAGE: Final = Path(__file__).parents[2] / "kraftjbod"
#: The packages whose code runs in simulated daemons.
PACKAGES: Final = ("raft", "controller", "metadata", "storage", "broker")
#: Executed line numbers by absolute file name.
Lines = dict[str, set[int]]

_collector: coverage.Coverage | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The suite whose first statement is at ``line`` of a file, inside ``function``."""

    line: int
    function: str


def blocks_of(source: str) -> list[Block]:
    """Return the blocks of a module's source text, in order of their lines.

    :raises SyntaxError: the text is no Python.
    """
    return sorted(_blocks_within(ast.parse(source), ""), key=lambda block: block.line)


def _blocks_within(node: ast.AST, function: str) -> Iterator[Block]:
    for child in ast.iter_child_nodes(node):
        name = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{function}.{child.name}".lstrip(".")
        if _is_executed_by_calls(child, function):
            for suite in _suites_of(child):
                if line := _first_statement(suite):
                    yield Block(line, name)
        yield from _blocks_within(child, name)


def _is_executed_by_calls(node: ast.AST, function: str) -> bool:
    """Exclude suites that an import executes: those of classes and of module-level statements."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return bool(function) and not isinstance(node, ast.ClassDef | ast.Lambda)


def _suites_of(node: ast.AST) -> list[list[ast.stmt]]:
    suites = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return [suite for suite in suites if isinstance(suite, list) and suite]


def _first_statement(suite: Sequence[ast.stmt]) -> int:
    """Return the line of the first statement that is executed, 0 if there is none."""
    for statement in suite:
        is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_constant and not isinstance(statement, ast.Global | ast.Nonlocal):
            return statement.lineno
    return 0


def _start_collecting() -> None:
    global _collector
    _collector = coverage.Coverage(
        data_file=None, config_file=False, concurrency=["greenlet"], source=[str(PACKAGE)]
    )


def _run_collected(run: partial[Outcome], seed: int) -> tuple[Outcome, Lines]:
    """Run one seed and return its outcome with the lines that this worker has executed so far."""
    assert _collector is not None
    _collector.start()
    try:
        outcome = run(seed)
    finally:
        _collector.stop()
    data = _collector.get_data()
    return outcome, {name: set(data.lines(name) or ()) for name in data.measured_files()}


def collect(seeds: Sequence[int], run: partial[Outcome], jobs: int) -> tuple[list[Outcome], Lines]:
    """Run the seeds in ``jobs`` processes; return their outcomes and all executed lines."""
    outcomes, lines = [], defaultdict[str, set[int]](set)
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_start_collecting) as pool:
        for outcome, executed in pool.imap_unordered(partial(_run_collected, run), seeds):
            outcomes.append(outcome)
            for name, numbers in executed.items():
                lines[name] |= numbers
    return outcomes, dict(lines)


def report(lines: Lines, *, with_missing: bool) -> list[str]:
    """Return a table of entered blocks per package, and the blocks that were never entered."""
    entered, total = Counter[str](), Counter[str]()
    missing: list[str] = []
    for package in PACKAGES:
        for path in sorted((PACKAGE / package).rglob("*.py")):
            executed = lines.get(str(path), set())
            for block in blocks_of(path.read_text()):
                total[package] += 1
                if block.line in executed:
                    entered[package] += 1
                else:
                    place = path.relative_to(PACKAGE)
                    missing.append(f"{place}:{block.line} {block.function}")
    table = [
        f"{package:<12}{entered[package]:>6} of {total[package]:>6} blocks entered "
        f"({100 * entered[package] / total[package]:.1f} %)"
        for package in PACKAGES
    ]
    return [*table, *(["", "never entered:", *missing] if with_missing else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=24, help="the number of seeds")
    parser.add_argument("--duration", type=float, default=20.0, help="virtual seconds of faults")
    parser.add_argument("--controllers", type=int, help="voters; drawn from the seed by default")
    parser.add_argument("--unlimited", action="store_true", help="more faults than are survived")
    parser.add_argument("--light", action="store_true", help="small clusters, a light load")
    parser.add_argument("--missing", action="store_true", help="list blocks never entered")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    run = partial(
        run_seed,
        duration_ms=int(options.duration * 1000),
        keeps_promise=not options.unlimited,
        controllers=options.controllers,
        is_light=options.light,
    )
    outcomes, lines = collect(range(options.seed, options.seed + options.seeds), run, options.jobs)
    print("\n".join(report(lines, with_missing=options.missing)))
    failed = sorted(outcome.seed for outcome in outcomes if outcome.findings)
    print(f"{len(outcomes)} seeds, {len(failed)} failed: {' '.join(map(str, failed)) or '-'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
