"""The timeline of a game day as one SVG: a lane per partition, and what happened when.

Each lane shows how many records were acknowledged in each short slice of time; the longest gap is
marked, with its length. Vertical lines are the instants of the scenario, ticks are changes of
leaders. Colours follow the reader's scheme, light or dark. Nothing is loaded from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from kraftjbod.gameday.outcome import Outcome, PartitionOutcome

_WIDTH: Final = 1000
_LEFT: Final = 56
_RIGHT: Final = 84
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_TITLE: Final = 44
_MARK_ROW: Final = 14
_LANE: Final = 20
_LANE_GAP: Final = 4
_AXIS: Final = 34
_SLICE_PX: Final = 5
_LABEL_PX: Final = 7

_STYLE: Final = """
  svg { background: #fff; font: 12px system-ui, sans-serif; }
  text { fill: #1c2430; } .quiet { fill: #66707f; } .title { font-size: 15px; font-weight: 600; }
  .lane { fill: #f1f3f6; } .rate { fill: #3b78c2; } .gap { fill: #d43d2a; fill-opacity: .28; }
  .gaptext { fill: #b32a19; font-weight: 600; } .mark { stroke: #1c2430; stroke-dasharray: 3 3; }
  .axis { stroke: #c3cad4; } .leader { fill: #9a5b00; } .bad { fill: #b32a19; }
  @media (prefers-color-scheme: dark) {
    svg { background: #14181f; }
    text { fill: #e4e9f1; } .quiet { fill: #98a3b3; } .lane { fill: #1f2630; }
    .rate { fill: #6aa5ea; } .gap { fill: #ff6b57; fill-opacity: .35; }
    .gaptext { fill: #ff8a79; } .mark { stroke: #e4e9f1; } .axis { stroke: #3a4453; }
    .leader { fill: #f0b04d; } .bad { fill: #ff8a79; }
  }
"""


def draw_timeline(outcomes: Sequence[Outcome]) -> str:
    """One block per outcome, one below the other."""
    blocks, top = [], 8
    for outcome in outcomes:
        block, height = _Block(outcome).draw()
        blocks.append(f'<g transform="translate(0 {top})">{block}</g>')
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}" role="img">\n<title>Game day</title>\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(blocks) + "\n</svg>\n"
    )


class _Block:
    """One outcome: title, marks, lanes, axis."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._seconds = max(0.001, outcome.ended_s - outcome.began_s)

    def draw(self) -> tuple[str, int]:
        """The elements, and how high they are."""
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
        verdict = "; ".join(outcome.complaints) or (
            f"longest gap {outcome.max_gap_ms} ms of at most {outcome.limit_ms} ms; all "
            f"{outcome.acknowledged} acknowledged records are there, once, in order"
        )
        kind = "bad" if outcome.complaints else "quiet"
        return (
            f'<text class="title" x="{_LEFT}" y="14">{escape(outcome.scenario)}'
            f'<tspan class="quiet" dx="10" font-size="12" font-weight="400">'
            f"{escape(outcome.target)}</tspan></text>"
            f'<text class="{kind}" x="{_LEFT}" y="32">{escape(verdict)}</text>'
        )

    def _label_rows(self) -> list[int]:
        """For each mark the first row in which its label hits no other."""
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
        hit = "*" if one.was_hit else ""
        start, end = self._x(one.gap.start_s), self._x(one.gap.end_s)
        middle = top + _LANE - 6
        ticks = "".join(
            f'<path class="leader" d="M{self._x(at):.1f} {top}l4 0l-4 6l-4 -6z"/>'
            for at in one.leader_changes
        )
        return (
            f'<rect class="lane" x="{_LEFT}" y="{top}" width="{_PLOT}" height="{_LANE}"/>'
            f'<text class="quiet" x="{_LEFT - 8}" y="{middle}" text-anchor="end">'
            f"{one.partition}{hit}</text>"
            f'<path class="rate" d="{self._rate_path(one, top)}"/>'
            f'<rect class="gap" x="{start:.1f}" y="{top}" width="{max(1.0, end - start):.1f}" '
            f'height="{_LANE}"/>{ticks}'
            f'<text class="gaptext" x="{_WIDTH - _RIGHT + 8}" y="{middle}">'
            f"{one.gap.length_ms} ms</text>"
        )

    def _rate_path(self, one: PartitionOutcome, top: int) -> str:
        """Steps as high as there were acknowledgements, the busiest slice as high as the lane."""
        slices = [0] * (_PLOT // _SLICE_PX + 1)
        for ack in one.acks:
            if not self._outcome.began_s <= ack.at_s <= self._outcome.ended_s:
                continue
            slices[int((self._x(ack.at_s) - _LEFT) / _SLICE_PX)] += ack.count
        most = max(slices)
        if not most:
            return ""
        bottom = top + _LANE
        steps = [
            f"M{_LEFT + at * _SLICE_PX} {bottom}v{-count / most * (_LANE - 2):.1f}"
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
