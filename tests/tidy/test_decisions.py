"""Every ADR is cited by the code that embodies it, and every citation names an ADR."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.checkout import ROOT
from tests.tidy.sources import PACKAGE

FOLDER: Final = PACKAGE / "adr"
CITATION: Final = re.compile(r"\bADR (\d+)")
FIELDS: Final = ("**Status:**", "**Date:**", "## Context", "## Decision", "## Consequences")


def decisions() -> dict[int, Path]:
    return {int(path.name[:4]): path for path in sorted(FOLDER.glob("0*.md"))}


def citations(paths: list[Path]) -> set[tuple[str, int]]:
    """Return the name of the file and the number of each ADR that the file cites."""
    return {
        (path.name, int(number)) for path in paths for number in CITATION.findall(path.read_text())
    }


def source_files() -> list[Path]:
    return [path for folder in (PACKAGE, ROOT / "tests") for path in sorted(folder.rglob("*.py"))]


def test_cited_decisions_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.md")]
    history = {ROOT / "CHANGELOG.md"}
    cited = citations([*source_files(), *(page for page in pages if page not in history)])
    assert {entry for entry in cited if entry[1] not in decisions()} == set()


def test_decisions_are_cited_by_code() -> None:
    cited = {number for _, number in citations(source_files())}
    assert set(decisions()) - cited == set(), "cite them in the docstring of the file they explain"


def test_list_of_decisions_is_complete() -> None:
    rows = {
        f"| [{path.name[:4]}]({path.name}) | {path.read_text().splitlines()[0].split('. ', 1)[1]} |"
        for path in decisions().values()
    }
    lines = (FOLDER / "README.md").read_text().splitlines()
    assert {line for line in lines if line.startswith("| [")} == rows


def test_decisions_have_all_parts_on_one_page() -> None:
    texts = {path.name: path.read_text() for path in decisions().values()}
    assert {
        name for name, text in texts.items() if not all(map(text.__contains__, FIELDS))
    } == set()
    assert {name for name, text in texts.items() if len(text.split()) > 500} == set()
