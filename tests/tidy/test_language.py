"""Lines that were added since a commit have none of the words that STYLE.md avoids."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checkout import ROOT

#: Lines that are older than this commit are not looked at.
BASE: Final = "fa6d6623ce"
AVOIDED: Final = re.compile(
    r"\b(whoever|whatever|anew|nobody|somebody|hears? of|told|wish(?:es|ed)?|goes on|go on|went on"
    r"|stands? still|stood still|by itself|by themselves|for good|taken for|on its way|let go of"
    r"|given up|turn of the loop|hand-over)\b",
    re.IGNORECASE,
)
#: It lists the words.
EXEMPT: Final = frozenset({"STYLE.md", "tests/tidy/test_language.py"})
_HUNK: Final = re.compile(r"@@ -\S+ \+(\d+)")


def git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def added(diff: str) -> Iterator[tuple[str, int, str]]:
    """Return file, line number and text of each line that ``diff`` adds."""
    name, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif (hunk := _HUNK.match(line)) is not None:
            number = int(hunk[1]) - 1
        elif line.startswith("+"):
            number += 1
            yield name, number, line[1:]


def prose_lines(path: Path) -> frozenset[int]:
    """Return the numbers of the lines of a Python file that have a comment or a string."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING}
    return frozenset(
        line
        for token in tokens
        if token.type in kinds
        for line in range(token.start[0], token.end[0] + 1)
    )


def avoided_words(diff: str) -> Iterator[str]:
    for name, number, text in added(diff):
        if name in EXEMPT or AVOIDED.search(text) is None:
            continue
        if name.endswith(".md") or number in prose_lines(ROOT / name):
            yield f"{name}:{number}: {text.strip()}"


def test_added_lines_have_no_avoided_word() -> None:
    diff = git("diff", "-U0", BASE, "--", "*.py", "*.md")
    if diff is None:
        pytest.skip(f"this clone has no commit {BASE}")
    assert list(avoided_words(diff)) == [], "STYLE.md says which words to write instead"


def test_avoided_words_are_found_in_added_prose_only() -> None:
    here = "tests/tidy/test_documents.py"
    line = next(
        number
        for number, text in enumerate((ROOT / here).read_text().splitlines(), 1)
        if text.startswith('"""')
    )
    diff = f"+++ b/{here}\n@@ -0,0 +{line} @@\n+a name that nobody reads\n+nobody = 1\n"
    diff += "+++ b/README.md\n@@ -1,0 +1 @@\n+It goes on.\n-It went on.\n"
    assert list(avoided_words(diff)) == [
        f"{here}:{line}: a name that nobody reads",
        "README.md:1: It goes on.",
    ]
