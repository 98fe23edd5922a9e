"""Generates docs/coverage.md from the data of coverage.py (``make coverage``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import PurePath
from typing import Final

import coverage

from tests.checkout import ROOT

PAGE: Final = ROOT / "docs/coverage.md"
_HEAD: Final = """\
# Coverage

This page has the share of the lines of each package that the unit tests (`tests/unit`) run.
`make coverage` measures it and writes this page. The figures were measured on {day}, so packages that were added later are missing.
Packages with low figures are tested with real processes, in `tests/integration` and `tests/spark`. These tests are not counted here.
"""


def page(packages: Mapping[str, tuple[int, int]], day: date) -> str:
    """Return the page.

    :param packages: numbers of run lines and of all lines, by package.
    :param day: day of the measurement.
    """
    run, lines = (sum(numbers) for numbers in zip(*packages.values(), strict=True))
    rows = [(f"`{name}`", *numbers) for name, numbers in sorted(packages.items())]
    table = "".join(
        f"| {name} | {lines:,} | {100 * run / lines:.1f} % |\n"
        for name, run, lines in (*rows, ("all", run, lines))
    )
    return f"{_HEAD.format(day=day)}\n| package | lines | run |\n|---|---|---|\n{table}"


def by_package(files: Iterable[tuple[PurePath, int, int]]) -> dict[str, tuple[int, int]]:
    """Sum run lines and all lines of files, given relative to the checkout, by package."""
    packages: dict[str, tuple[int, int]] = {}
    for path, run, lines in files:
        package = path.parts[1] if len(path.parts) > 2 else path.parts[0]
        so_far = packages.get(package, (0, 0))
        packages[package] = (so_far[0] + run, so_far[1] + lines)
    return {name: numbers for name, numbers in packages.items() if numbers[1]}


def _measured() -> Iterable[tuple[PurePath, int, int]]:
    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.load()
    for path in sorted((ROOT / "kraftjbod").rglob("*.py")):
        _, lines, _, missing, _ = measured.analysis2(str(path))
        yield path.relative_to(ROOT), len(lines) - len(missing), len(lines)


if __name__ == "__main__":
    text = page(by_package(_measured()), datetime.now(UTC).date())
    print(text.partition("\n\n|")[2])
    PAGE.write_text(text, encoding="utf-8")
