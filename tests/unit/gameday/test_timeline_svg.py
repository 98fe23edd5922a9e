"""The timeline is well-formed, shows every lane and mark, and loads nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from kraftjbod.gameday.acknowledgements import Gap
from kraftjbod.gameday.outcome import Mark
from kraftjbod.gameday.timeline_svg import draw_timeline
from tests.unit.gameday.outcomes import outcome, partition

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def test_lanes_marks_and_gaps_are_there() -> None:
    svg = draw_timeline(
        [
            outcome(
                partition(0, gap=Gap(101.0, 103.0), was_hit=True),
                partition(1, gap=Gap(101.0, 101.1)),
            ),
            outcome(scenario="full-disk"),
        ]
    )
    shown = texts(svg)
    assert any(text.startswith("dead-disk/d<1> of broker 1") for text in shown)
    assert {"0*", "1", "2000 ms", "100 ms", "injected", "noticed", "in sync"} <= set(shown)
    root = ET.fromstring(svg)
    assert len(root.findall(f"{SVG}g")) == 2
    assert len([r for r in root.iter(f"{SVG}rect") if r.get("class") == "lane"]) == 3
    [wide, _, _] = [r for r in root.iter(f"{SVG}rect") if r.get("class") == "gap"]
    assert float(wide.get("width", "0")) == 860 * 0.2
    assert "prefers-color-scheme: dark" in svg
    assert re.findall(r"(?:href|src|url\()", svg) == []


def test_acknowledgements_before_the_beginning_are_not_drawn() -> None:
    svg = draw_timeline([outcome()])
    [rate] = [p for p in ET.fromstring(svg).iter(f"{SVG}path") if p.get("class") == "rate"]
    heights = {float(h) for h in re.findall(r"v(-[\d.]+)", rate.get("d", ""))}
    assert heights == {-18.0}, "each slice has one record, the nine before it are not shown"


def test_labels_of_marks_that_are_close_stand_in_rows_of_their_own() -> None:
    marks = [Mark(what=f"mark {n}", at_s=101.0 + n / 1000) for n in range(3)]
    svg = draw_timeline([outcome(marks=marks)])
    heights = {
        node.get("y")
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if node.text in ("mark 0", "mark 1", "mark 2")
    }
    assert len(heights) == 3


def test_nothing_to_show_is_a_picture_too() -> None:
    assert ET.fromstring(draw_timeline([])).tag == f"{SVG}svg"
