"""Tests that the patches of ``make sim-mutants`` apply to the current code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.checkout import ROOT

PATCHES = sorted((ROOT / "tests/sim/mutants").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_mutant_patch_context_occurs_once(patch: Path) -> None:
    hunks = 0
    for of_file in re.split(r"^diff --git .*\n", patch.read_text(), flags=re.M)[1:]:
        path = re.search(r"^--- a/(.*)", of_file, flags=re.M)
        assert path is not None
        source = Path(ROOT, path[1]).read_text()
        for hunk in re.split(r"^@@ .*\n", of_file, flags=re.M)[1:]:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            assert before != after
            assert source.count(before) == 1, f"{path[1]} is another one now:\n{before}"
            hunks += 1
    assert hunks, f"{patch.name} changes nothing"
