"""PURE. The timeline of a game day as an SVG image: verdict, legend, and a lane per partition.

Each lane shows the number of acknowledged records per slice of time. A gap is drawn if it is long
compared with the gaps before the fault and with the limit. Only a gap above the limit is red.
Vertical lines are the events of the scenario, triangles are changes of leaders.
Colors follow the reader's scheme, light or dark. The image loads no external resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final
from xml.sax.saxutils import escape

from kraftjbod.gameday.outcome import Outcome, PartitionOutcome

_WIDTH: Final = 1000
_LEFT: Final = 56
_RIGHT: Final = 84
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_HEAD: Final = 66
_TITLE: Final = 46
_MARK_ROW: Final = 14
_LANE: Final = 20
_LANE_GAP: Final = 4
_AXIS: Final = 44
_SLICE_PX: Final = 5
_LABEL_PX: Final = 7

#: A gap is drawn if it is longer than those before the fault by this factor, and longer than this
#: share of the limit. Shorter gaps are normal under load.
_TIMES_CALM: Final = 2
_SHARE_OF_LIMIT: Final = 0.1
#: A slice with this multiple of the median number of records has full height. Without this limit, a
#: burst after a gap would flatten all other slices.
_BURST: Final = 3
_LEGEND_BOX: Final = 10

_STYLE: Final = """
  svg { background: #fff; font: 12px system-ui, sans-serif; }
  text { fill: #1c2430; } .quiet { fill: #66707f; } .title { font-size: 15px; font-weight: 600; }
  .good { fill: #1a7f4b; } .bad { fill: #b32a19; } .verdict { font-weight: 600; }
  .lane { fill: #f1f3f6; } .rate { fill: #3b78c2; }
  .gap { fill: #e0a21b; fill-opacity: .38; } .over { fill: #d43d2a; fill-opacity: .4; }
  .mark { stroke: #1c2430; stroke-dasharray: 3 3; } .axis { stroke: #c3cad4; }
  .leader { fill: #6b3fa0; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181f; }
    text { fill: #e4e9f1; } .quiet { fill: #98a3b3; } .lane { fill: #1f2630; }
    .good { fill: #5fcf97; } .bad { fill: #ff8a79; }
    .rate { fill: #6aa5ea; } .gap { fill: #f0b04d; } .over { fill: #ff6b57; }
    .mark { stroke: #e4e9f1; } .axis { stroke: #3a4453; } .leader { fill: #c9a6f5; }
  }
"""


def draw_timeline(outcomes: Sequence[Outcome]) -> str:
    """Return the SVG with the verdict, a legend, and one block per outcome."""
    blocks, top = [_head(outcomes)], _HEAD
    for outcome in outcomes:
        block, height = _Block(outcome).draw()
        blocks.append(f'<g class="block" transform="translate(0 {top})">{block}</g>')
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}" role="img">\n<title>Game day</title>\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(blocks) + "\n</svg>\n"
    )


def _head(outcomes: Sequence[Outcome]) -> str:
    good = sum(not outcome.complaints for outcome in outcomes)
    kind = "good" if outcomes and good == len(outcomes) else "bad"
    return (
        f'<text class="title" x="{_LEFT}" y="22">Game day'
        f'<tspan class="{kind}" dx="10">{good} of {len(outcomes)} good</tspan></text>{_legend()}'
    )


def _legend() -> str:
    side = _LEGEND_BOX
    shapes = {
        "acknowledged": f'<rect class="rate" width="{_SLICE_PX}" height="{side}" y="{-side}"/>',
        "gap that stands out": _legend_box("gap"),
        "gap above the limit": _legend_box("over"),
        "new leader": f'<path class="leader" d="{_triangle(0, 1 - side)}"/>',
        "what happened": f'<line class="mark" x1="4" x2="4" y1="{-side}" y2="2"/>',
        "led from what broke": '<text class="quiet" x="2">*</text>',
    }
    parts, x = [], float(_LEFT)
    for what, shape in shapes.items():
        parts.append(
            f'<g transform="translate({x:.0f} 46)">{shape}'
            f'<text class="quiet" x="{side + 6}">{what}</text></g>'
        )
        x += side + 6 + len(what) * _LABEL_PX + 18
    return "".join(parts)


def _legend_box(kind: str) -> str:
    side = _LEGEND_BOX
    return f'<rect class="{kind}" width="{side}" height="{side}" y="{-side}"/>'


def _triangle(x: float, y: float) -> str:
    return f"M{x:.1f} {y:.1f}l8 0l-4 8z"


class _Block:
    """The drawing of one outcome: title, marks, lanes, axis."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._seconds = max(0.001, outcome.ended_s - outcome.began_s)

    def draw(self) -> tuple[str, int]:
        """Return the SVG elements and their height."""
        outcome = self._outcome
        rows = self._label_rows()
        lanes_top = _TITLE + _MARK_ROW * (max(rows, default=-1) + 1) + 6
        lanes = [
            self._lane(one, lanes_top + number * (_LANE + _LANE_GAP))
            for number, one in enumerate(outcome.partitions)
        ]
        bottom = lanes_top + len(lanes) * (_LANE + _LANE_GAP)
        marks = [
            self._mark(mark.what, self._x(mark.at_s), _TITLE + _MARK_ROW * row, bottom)
            for mark, row in zip(outcome.marks, rows, strict=True)
        ]
        parts = [self._title(), *lanes, *marks, self._axis(bottom)]
        return "\n".join(parts), bottom + _AXIS

    def _x(self, at_s: float) -> float:
        share = (at_s - self._outcome.began_s) / self._seconds
        return _LEFT + _PLOT * min(1.0, max(0.0, share))

    def _title(self) -> str:
        outcome = self._outcome
        kind = "bad" if outcome.complaints else "good"
        reason = "; ".join(outcome.complaints) or (
            f"longest gap {outcome.max_gap_ms} ms of at most {outcome.limit_ms} ms; all "
            f"{outcome.acknowledged:,} acknowledged records are there, once, in order"
        )
        return (
            f'<text class="title" x="{_LEFT}" y="14">{escape(outcome.scenario)}'
            f'<tspan class="quiet" dx="10" font-size="12" font-weight="400">'
            f"{escape(outcome.target)}</tspan></text>"
            f'<text class="quiet" x="{_LEFT}" y="32"><tspan class="{kind} verdict">'
            f"{'not good' if outcome.complaints else 'good'}:</tspan> {escape(reason)}</text>"
            f'<text class="quiet" x="{_WIDTH - _RIGHT + 8}" y="{_TITLE + 10}">longest gap</text>'
        )

    def _label_rows(self) -> list[int]:
        """Return for each mark the first row in which its label overlaps no other."""
        ends: list[float] = []
        rows = []
        for mark in self._outcome.marks:
            start = self._x(mark.at_s)
            row = next((at for at, end in enumerate(ends) if end <= start), len(ends))
            end = start + 12 + len(mark.what) * _LABEL_PX
            ends[row : row + 1] = [end]
            rows.append(row)
        return rows

    def _mark(self, what: str, x: float, top: int, bottom: int) -> str:
        return (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text x="{x + 4:.1f}" y="{top + 10}">{escape(what)}</text>'
        )

    def _lane(self, one: PartitionOutcome, top: int) -> str:
        middle = top + _LANE - 6
        is_over = one.gap.length_ms > self._outcome.limit_ms
        stands_out = is_over or one.gap.length_ms >= max(
            _TIMES_CALM * one.calm_gap_ms, _SHARE_OF_LIMIT * self._outcome.limit_ms
        )
        figure = "bad verdict" if is_over else "" if stands_out else "quiet"
        hint = f"partition {one.partition}: longest gap {one.gap.length_ms} ms"
        if one.calm_gap_ms:
            hint += f", {one.calm_gap_ms} ms before the fault"
        ticks = "".join(
            f'<path class="leader" d="{_triangle(self._x(at) - 4, top)}"/>'
            for at in one.leader_changes
        )
        return (
            f"<g><title>{hint}</title>"
            f'<rect class="lane" x="{_LEFT}" y="{top}" width="{_PLOT}" height="{_LANE}"/>'
            f'<text class="quiet" x="{_LEFT - 8}" y="{middle}" text-anchor="end">'
            f"{one.partition}{'*' if one.was_hit else ''}</text>"
            f'<path class="rate" d="{self._rate_path(one, top)}"/>'
            f"{self._gap(one, top, 'over' if is_over else 'gap') if stands_out else ''}{ticks}"
            f'<text class="{figure}" x="{_WIDTH - _RIGHT + 8}" y="{middle}">'
            f"{one.gap.length_ms:,} ms</text></g>"
        )

    def _gap(self, one: PartitionOutcome, top: int, kind: str) -> str:
        start, end = self._x(one.gap.start_s), self._x(one.gap.end_s)
        return (
            f'<rect class="{kind}" x="{start:.1f}" y="{top}" width="{max(1.0, end - start):.1f}" '
            f'height="{_LANE}"/>'
        )

    def _rate_path(self, one: PartitionOutcome, top: int) -> str:
        """Return the steps of acknowledged records; a burst is cut at the lane's height."""
        slices = [0] * (_PLOT // _SLICE_PX + 1)
        for ack in one.acks:
            if not self._outcome.began_s <= ack.at_s <= self._outcome.ended_s:
                continue
            slices[int((self._x(ack.at_s) - _LEFT) / _SLICE_PX)] += ack.count
        busy = [count for count in slices if count]
        if not busy:
            return ""
        most = min(max(busy), _BURST * median(busy))
        bottom = top + _LANE
        steps = [
            f"M{_LEFT + at * _SLICE_PX} {bottom}v{-min(1.0, count / most) * (_LANE - 2):.1f}"
            f"h{_SLICE_PX}V{bottom}z"
            for at, count in enumerate(slices)
            if count
        ]
        return "".join(steps)

    def _axis(self, top: int) -> str:
        step = next(size for size in (1, 2, 5, 10, 30, 60, 300, 3600) if self._seconds / size <= 15)
        parts = [f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{top}" y2="{top}"/>']
        for second in range(0, int(self._seconds) + 1, step):
            x = self._x(self._outcome.began_s + second)
            parts.append(
                f'<text class="quiet" x="{x:.1f}" y="{top + 15}" text-anchor="middle">'
                f"{second} s</text>"
            )
        return "".join(parts)
