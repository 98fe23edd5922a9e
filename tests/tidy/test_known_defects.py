"""``tests/KNOWN_DEFECTS.md`` names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.checkout import ROOT

REGISTRY = ROOT / "tests" / "KNOWN_DEFECTS.md"
_NODE = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<test>\w+)(\[(?P<case>[^\]`]+)\])?`")

ROWS = [
    line
    for line in REGISTRY.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| what")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row)[2:50])
def test_each_known_defect_has_tests_that_exist(row: str) -> None:
    nodes = list(_NODE.finditer(row))
    assert nodes, "names no test"
    assert len(nodes) == row.count("::"), "a test's name is not written as path::name"
    assert [node[0] for node in nodes if not _exists(node)] == []


def _exists(node: re.Match[str]) -> bool:
    path = ROOT / node["path"]
    if not path.exists():
        return False
    source = path.read_text()
    tests = {
        found.name
        for found in ast.parse(source).body
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return node["test"] in tests and (node["case"] is None or node["case"] in source)
