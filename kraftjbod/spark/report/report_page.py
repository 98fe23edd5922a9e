"""WIRE. A page of HTML that needs nothing but itself: no script, no font, no address.

Everything that is not :class:`Html` is escaped, so that a topic or a path may hold what it likes.
The page forbids itself the network (Content-Security-Policy). Light, dark and print are one CSS.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kraftjbod.spark.report.report_style import STYLE

#: Of one page; plots are bounded so that it holds.
MOST_BYTES: Final = 5_000_000
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page. ``lead`` is its one sentence; ``missing`` what to run to have it."""

    name: str
    heading: str
    lead: str
    parts: Sequence[Html] = ()
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the summary. ``tone`` is good, warn, bad or nothing."""

    figure: str
    label: str
    tone: str = ""


def escaped(value: object) -> Html:
    """``value`` as text of a page; HTML stays what it is."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_UNPRINTABLE.sub("\ufffd", str(value))))


def tiles(entries: Iterable[Tile]) -> Html:
    """Figures in a row."""
    shown = "".join(
        f'<div class="tile {escaped(tile.tone)}"><b>{escaped(tile.figure)}</b>'
        f"<span>{escaped(tile.label)}</span></div>"
        for tile in entries
    )
    return Html(f'<div class="tiles">{shown}</div>')


def table(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    left_out: int = 0,
) -> Html:
    """A table; columns in ``numbers`` are set right. ``left_out`` rows are said to be missing."""
    kinds = ['class="number"' if place in numbers else "" for place in range(len(columns))]

    def line(tag: str, cells: Sequence[object], scope: str = "") -> str:
        return "".join(
            f"<{tag} {kind}{scope}>{escaped(cell)}</{tag}>"
            for cell, kind in zip(cells, kinds, strict=True)
        )

    head = line("th", columns, ' scope="col"')
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    more = f'<p class="note">and {left_out:,} more</p>' if left_out > 0 else ""
    # Long tables scroll in themselves, also by keyboard.
    return Html(
        f'<div class="table" tabindex="0" role="region" aria-label="{escaped(caption)}">'
        f'<table id="{escaped(name)}"><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def figure(name: str, svg: str, caption: str) -> Html:
    """A drawing, which is trusted, and how to read it."""
    return Html(
        f'<figure id="figure-{escaped(name)}">{svg}<figcaption>{escaped(caption)}</figcaption>'
        "</figure>"
    )


def state(name: str, text: str | None = None) -> Html:
    """A state in its colour; unknown ones in none."""
    known = re.sub("[^a-z]", "", name.lower())
    return Html(f'<span class="state {known}">{escaped(text or name)}</span>')


def meter(share: float | None, text: str) -> Html:
    """A share as a bar with words in it."""
    if share is None:
        return escaped(text)
    width = 100 * min(max(share, 0.0), 1.0)
    tone = "bad" if share >= 0.9 else "warn" if share >= 0.8 else ""
    return Html(
        f'<span class="meter {tone}"><i style="width:{width:.1f}%"></i><span>{escaped(text)}'
        "</span></span>"
    )


def moment(text: str) -> Html:
    """A time, which stays on one line."""
    return Html(f'<span class="time">{escaped(text)}</span>')


def command(words: str) -> Html:
    """What to type."""
    return Html(f'<pre class="command">{escaped(words)}</pre>')


def page(
    title: str, subtitle: str, top: Html, sections: Sequence[Section], data: Mapping[str, Any]
) -> str:
    """The whole document. ``data`` is what the plots show, as JSON in element ``report-data``."""
    links = "".join(
        f'<a href="#{escaped(section.name)}"{" class=missing" if section.missing else ""}>'
        f"{escaped(section.heading)}</a>"
        for section in sections
    )
    body = "".join(_section(section) for section in sections)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escaped(title)}</h1><p>{escaped(subtitle)}</p></header>"
        f'<main>{top}<nav aria-label="Sections">{links}</nav>{body}</main>'
        f'<script type="application/json" id="report-data">{json_text(data)}</script>'
        "</body></html>\n"
    )


def json_text(data: Mapping[str, Any]) -> str:
    """JSON that no element can be ended by; what is not a number is null."""
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _section(section: Section) -> str:
    kind = "missing" if section.missing else ""
    return (
        f'<section id="{escaped(section.name)}" class="{kind}"><h2>{escaped(section.heading)}</h2>'
        f'<p class="lead">{escaped(section.lead)}</p>{"".join(section.parts)}</section>'
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
