"""Each point of core/buggify.py has a unique name, and docs/simulation.md describes its event."""

from __future__ import annotations

import ast
import re

from tests.checkout import ROOT
from tests.tidy.sources import read_sources

_ROW = re.compile(r"^\| `([a-z]+\.[a-z_]+)` \| \S", re.MULTILINE)
_OWN_FILE = "core/buggify.py"


def points() -> list[tuple[str, str]]:
    """The name of each point, and the file that it is in."""
    found = []
    for path, source in read_sources().items():
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func) in ("buggify.fires", "buggify.time_out")
            ):
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}"
                found.append((str(node.args[0].value), path))
    return found


def test_buggify_point_names_are_unique_and_begin_with_their_package() -> None:
    names = [name for name, _ in points()]
    assert sorted(names) == sorted(set(names))
    assert [name for name, path in points() if name.split(".")[0] != path.split("/")[0]] == []


def test_buggify_points_are_in_disk_and_loop_files() -> None:
    sources = read_sources()
    layers = {path: sources[path].layer for _, path in points()}
    assert {path for path, layer in layers.items() if layer not in ("DISK", "LOOP")} == set()


def test_buggify_calls_of_fires_are_guarded_by_is_on() -> None:
    """Outside of a simulation a point costs a comparison and no call."""
    for path, source in read_sources().items():
        asked = len(re.findall(r"buggify\.(?:fires|time_out)\(", source.text))
        if path != _OWN_FILE:
            assert source.text.count("buggify.is_on") == asked, path


def test_simulation_page_lists_each_point() -> None:
    page = (ROOT / "docs/simulation.md").read_text()
    section = page.partition("## Points in the daemons")[2].partition("\n## ")[0]
    assert sorted(_ROW.findall(section)) == sorted(name for name, _ in points())
