"""WIRE. Renders an HTML page without scripts, fonts or links to other files.

Templates and CSS are in ``templates/``. Jinja2 escapes all text that is not :class:`Html`, so
topics and paths may have any characters. Unprintable characters are replaced. The page forbids
itself the network (Content-Security-Policy). One CSS serves the light, dark and print styles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeAlias

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from kraftjbod.spark.style.plot_style import PALETTE

#: Maximum size of a page; the bounds of the plots ensure it.
MOST_BYTES: Final = 5_000_000
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)

Html: TypeAlias = Markup
"""Text that is HTML and is not escaped again."""


def _file(name: str) -> str:
    """Return the text of a file in ``templates/``, also if the package is in a zip."""
    return (files("kraftjbod.spark.report") / "templates" / name).read_text(encoding="utf-8")


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else _UNPRINTABLE.sub("\ufffd", str(value))


_PAGES: Final = Environment(
    loader=FunctionLoader(_file),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
)
#: The macros of parts.html, as functions.
_PARTS: Final[Any] = _PAGES.get_template("parts.html").module


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page, with a ``lead`` of a sentence.

    ``missing``: its tables do not exist, and ``parts`` has the command that writes them.
    """

    name: str
    heading: str
    lead: str
    parts: Sequence[Html] = ()
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure of the summary. ``tone`` is ``good``, ``warn``, ``bad`` or empty."""

    figure: str
    label: str
    tone: str = ""


def tiles(entries: Iterable[Tile]) -> Html:
    """Return HTML with the figures in a row."""
    return Html(_PARTS.tiles(entries))


def table(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    left_out: int = 0,
) -> Html:
    """Return an HTML table.

    :param numbers: indexes of the columns that are aligned to the right.
    :param left_out: number of omitted rows, which the table states.
    :raises ValueError: a row has another number of cells than ``columns``.
    """
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row of table {name} has not {len(columns)} cells")
    return Html(_PARTS.table(name, caption, columns, rows, numbers, left_out))


def figure(name: str, svg: str, caption: str) -> Html:
    """Return an HTML figure of ``svg``, which is not escaped, with ``caption`` below."""
    return Html(_PARTS.figure(name, svg, caption))


def state(name: str, text: str | None = None) -> Html:
    """Return the name of a state in its colour; an unknown state has no colour.

    :param text: text to show instead of the name.
    """
    return Html(_PARTS.state(re.sub("[^a-z]", "", name.lower()), text or name))


def meter(share: float | None, text: str) -> Html | str:
    """Return a bar of the length ``share`` (0 to 1) with ``text`` in it; only the text for None."""
    return text if share is None else Html(_PARTS.meter(share, text))


def moment(text: str) -> Html:
    """Return HTML with a time that stays on one line."""
    return Html(_PARTS.moment(text))


def command(words: str) -> Html:
    """Return HTML with a command line."""
    return Html(_PARTS.command(words))


def style() -> Html:
    """Return the CSS: the colours of plots, then report.css."""
    light, dark = (
        "".join(f"--{one.name}:{colour};" for one, colour in pairs)
        for pairs in (
            [(one, one.light) for one in PALETTE],
            [(one, one.dark) for one in PALETTE],
        )
    )
    scheme = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return Html(f"{scheme}\n{_file('report.css')}")


def page(
    title: str, subtitle: str, top: Html, sections: Sequence[Section], data: Mapping[str, Any]
) -> str:
    """Return the whole document.

    :param data: the numbers of the plots, included as JSON in the element ``report-data``.
    """
    text: str = _PAGES.get_template("report.html").render(
        title=title,
        subtitle=subtitle,
        top=top,
        sections=sections,
        style=style(),
        data=Html(json_text(data)),
    )
    return text


def json_text(data: Mapping[str, Any]) -> str:
    """Return ``data`` as JSON that cannot end an HTML element.

    Infinite numbers and NaN become null.
    """
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
