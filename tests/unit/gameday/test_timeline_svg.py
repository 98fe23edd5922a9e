"""``draw_timeline``: well-formed SVG with every lane and mark, without external resources."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

from kraftjbod.gameday.load.acknowledgements import Ack, Gap
from kraftjbod.gameday.outcome import Mark
from kraftjbod.gameday.timeline_svg import draw_timeline
from tests.unit.gameday.outcomes import outcome, partition

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def rects(svg: str, kind: str) -> list[ET.Element]:
    """Return rectangles of lanes, without those of the legend."""
    blocks = [g for g in ET.fromstring(svg).findall(f"{SVG}g") if g.get("class") == "block"]
    return [r for g in blocks for r in g.iter(f"{SVG}rect") if r.get("class") == kind]


def test_draw_timeline_shows_lanes_marks_and_verdicts() -> None:
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
    assert {"0*", "1", "2,000 ms", "100 ms", "injected", "noticed", "in sync"} <= set(shown)
    assert {"Game day1 of 2 good", "gap above the limit", "led from what broke"} <= set(shown)
    assert any(text.startswith("not good: the longest gap, 2000 ms, is above") for text in shown)
    assert any(text.startswith("good: longest gap 500 ms of at most 1000 ms") for text in shown)
    assert len(rects(svg, "lane")) == 3
    assert "prefers-color-scheme: dark" in svg
    assert re.findall(r"(?:href|src|url\()", svg) == []


def test_draw_timeline_colors_only_time_above_the_limit() -> None:
    """40 ms were normal before the fault; a gap of 99 ms is less than a tenth of the limit."""
    lanes = [
        partition(number, gap=Gap(101.0, 101.0 + seconds))
        for number, seconds in enumerate((2.0, 1.0, 0.1, 0.099))
    ]
    svg = draw_timeline([outcome(*lanes)])
    assert [float(r.get("width", "0")) for r in rects(svg, "over")] == [860 * 0.2]
    assert [float(r.get("width", "0")) for r in rects(svg, "gap")] == [860 * 0.1, 860 * 0.01]
    figures = {
        node.text: node.get("class")
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if (node.text or "").endswith(" ms")
    }
    assert figures == {"2,000 ms": "bad verdict", "1,000 ms": "", "100 ms": "", "99 ms": "quiet"}


def test_draw_timeline_cuts_bursts_and_omits_earlier_records() -> None:
    one = partition(0, gap=Gap(101.0, 101.5))
    burst = replace(one, acks=[*one.acks, Ack(at_s=105.0, offset=100, count=1000)])
    for shown, expected in ((one, {-18.0}), (burst, {-18.0, -6.0})):
        [rate] = [
            p
            for p in ET.fromstring(draw_timeline([outcome(shown)])).iter(f"{SVG}path")
            if p.get("class") == "rate"
        ]
        # Each slice but that of the burst has one record; the nine earlier ones are not shown.
        assert {float(h) for h in re.findall(r"v(-[\d.]+)", rate.get("d", ""))} == expected


def test_draw_timeline_places_labels_of_close_marks_in_separate_rows() -> None:
    marks = [Mark(what=f"mark {n}", at_s=101.0 + n / 1000) for n in range(3)]
    svg = draw_timeline([outcome(marks=marks)])
    heights = {
        node.get("y")
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if node.text in ("mark 0", "mark 1", "mark 2")
    }
    assert len(heights) == 3


def test_draw_timeline_without_outcomes_is_valid_svg() -> None:
    assert ET.fromstring(draw_timeline([])).tag == f"{SVG}svg"
