"""WIRE. The style of every plot of the pipeline: colours, figures, and SVG for HTML pages.

* Figures are drawn in the colours of the light scheme. In an HTML page each colour becomes a CSS
  variable, so that the page's scheme applies. A picture in a file keeps the colours.
* Text stays text, is never parsed as a formula, and has no character that XML cannot contain.
* Colours are Okabe and Ito's, which colour-blind people can distinguish. A state has the same
  colour in all plots.
"""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from kraftjbod.core.text.size_text import size_text


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour by its CSS name: the values in the light and in the dark scheme."""

    name: str
    light: str
    dark: str


INK: Final = Colour("ink", "#1c2128", "#e6eaf0")
QUIET: Final = Colour("quiet", "#59636f", "#9aa6b4")
GRID: Final = Colour("grid", "#dfe4ea", "#343c47")
SURFACE: Final = Colour("surface", "#fefefe", "#171c22")
BEFORE: Final = Colour("before", "#98a2ae", "#77828f")
AFTER: Final = Colour("after", "#0072b2", "#4fa8e0")
BAND: Final = Colour("band", "#56b4e9", "#3d7fa8")
ALARM: Final = Colour("alarm", "#d55e01", "#f0793a")
ONLINE: Final = Colour("online", "#a5d8c8", "#1d6b57")
SATURATED: Final = Colour("saturated", "#e69f00", "#e8ab2e")
STALLED: Final = Colour("stalled", "#a0569c", "#c98ac6")
OFFLINE: Final = Colour("offline", "#c23b00", "#f2682d")
CORDONED: Final = Colour("cordoned", "#30404f", "#d3dbe4")
MOVING: Final = Colour("moving", "#0067a3", "#62b6ea")
#: Colours of lines in one plot; the first ones differ most.
SERIES: Final = (
    Colour("series-0", "#0072b1", "#4fa8e1"),
    Colour("series-1", "#d55e00", "#f0793b"),
    Colour("series-2", "#009e73", "#2fc79a"),
    Colour("series-3", "#cc79a7", "#e29ac3"),
    Colour("series-4", "#b8860b", "#e0b94a"),
    Colour("series-5", "#3f4fa8", "#8f9cec"),
    Colour("series-6", "#56b4e8", "#87cdf5"),
    Colour("series-7", "#6b6b6b", "#b0b0b0"),
)
STATES: Final = {
    "online": ONLINE,
    "saturated": SATURATED,
    "stalled": STALLED,
    "offline": OFFLINE,
}
PALETTE: Final = (
    *(INK, QUIET, GRID, SURFACE, BEFORE, AFTER, BAND, ALARM, CORDONED, MOVING),
    *STATES.values(),
    *SERIES,
)
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": QUIET.light,
    "axes.labelcolor": QUIET.light,
    "axes.titlecolor": INK.light,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET.light,
    "ytick.color": QUIET.light,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "text.color": INK.light,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "hatch.linewidth": 0.8,
    "lines.linewidth": 1.4,
    "timezone": "UTC",
}
#: Date formats for years, months, days, hours, minutes and seconds: of ticks, of ticks at zero, and
#: of the text at the end of the axis.
_TIMES: Final[dict[str, Any]] = {
    "formats": ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
    "zero_formats": ["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M"],
    "offset_formats": ["", "", "%Y", "%b %Y", "%d %b %Y", "%d %b %Y"],
}
_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_DIGITS: Final = re.compile(r"(\d+)")
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_FONT: Final = re.compile(r"font(-family)?: ([^;]*)(?=;|$)")


def plain(text: object, *, limit: int = 60) -> str:
    """Return ``text`` as one line of printable characters.

    The middle of a text longer than ``limit`` is replaced by an ellipsis.
    """
    line = _UNPRINTABLE.sub("\ufffd", str(text))
    if len(line) <= limit:
        return line
    head = (limit - 1) // 2
    return f"{line[:head]}…{line[len(line) - (limit - 1 - head) :]}"


def natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``disk-2`` before ``disk-10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(text)]


def byte_scale(axis: Axis, top: float, per: str = "", *, ticks: int = 5) -> None:
    """Set ticks of ``axis``, from 0 to ``top`` bytes, at round numbers of a binary unit.

    :param per: text after the unit, such as ``/s``.
    :param ticks: approximate number of ticks.
    """
    top = max(top, 1.0)
    unit = 1024.0 ** int(math.log(top, 1024))
    rough = top / unit / ticks
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(s for s in (1, 2, 5, 10) if s * magnitude >= rough * 0.999) * magnitude
    axis.set_major_locator(MultipleLocator(step * unit))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _round_size(value, unit, per)))


def _round_size(value: float, unit: float, per: str) -> str:
    name = size_text(unit).split()[1]
    return f"{value / unit:g} {name}{per}" if value else "0"


def short_paths(paths: Sequence[str], *, limit: int = 24) -> list[str]:
    """Return shortened paths of one broker's directories.

    If any path is longer than ``limit`` characters, the folders that all paths begin or end with
    are omitted: ``/mnt/disk-1/logs`` becomes ``…/disk-1/…``.
    """
    if all(len(path) <= limit for path in paths):
        return [plain(path, limit=limit) for path in paths]
    parts = [PurePosixPath(path).parts for path in paths]
    first = len(_common([names[:-1] for names in parts]))
    last = len(_common([names[:first:-1] for names in parts])) if len(paths) > 1 else 0
    short = []
    for names in parts:
        text = str(PurePosixPath(*names[first : len(names) - last]))
        text = f"…/{text}" if first > 1 else f"/{text.lstrip('/')}"
        short.append(plain(f"{text}/…" if last else text, limit=limit))
    return short


def _common(parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the items with which all sequences begin."""
    same: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        same.append(names[0])
    return same


@dataclass(frozen=True, slots=True)
class DirRows:
    """The rows of a plot: directories from top to bottom, under a heading for each broker.

    If most brokers have only one of these directories, the headings are omitted and each row names
    its broker.
    """

    dirs: tuple[tuple[int, str], ...]
    places: tuple[int, ...]
    heads: tuple[tuple[int, str], ...]
    labels: tuple[str, ...]

    @classmethod
    def of_dirs(cls, dirs: Iterable[tuple[int, str]]) -> DirRows:
        ordered = sorted(dirs, key=lambda dir_: (dir_[0], natural(dir_[1])))
        places: list[int] = []
        heads: list[tuple[int, str]] = []
        labels: list[str] = []
        row = 0
        if 2 * len({broker_id for broker_id, _ in ordered}) > len(ordered):
            labels = [f"{broker_id}: {plain(path, limit=24)}" for broker_id, path in ordered]
            return cls(tuple(ordered), tuple(range(len(ordered))), (), tuple(labels))
        for broker_id, group in groupby(ordered, key=lambda dir_: dir_[0]):
            paths = [path for _, path in group]
            heads.append((row, f"broker {broker_id}"))
            places += range(row + 1, row + 1 + len(paths))
            labels += short_paths(paths)
            row += 1 + len(paths)
        return cls(tuple(ordered), tuple(places), tuple(heads), tuple(labels))

    @property
    def height(self) -> int:
        """Number of rows, including headings."""
        return len(self.dirs) + len(self.heads)

    def label(self, ax: Axes, above: Sequence[str] = ()) -> None:
        """Name the rows at the left of ``ax``: first the rows ``above``, then the directories."""
        down = len(above)
        heads = {row + down for row, _ in self.heads} | set(range(down))
        own = [*zip(self.places, self.labels, strict=True), *self.heads]
        ticks = sorted([*enumerate(above), *((row + down, text) for row, text in own)])
        ax.set_yticks([row for row, _ in ticks], [text for _, text in ticks])
        for (row, _), tick in zip(ticks, ax.get_yticklabels(), strict=True):
            if row in heads:
                tick.set_fontweight("bold")
                tick.set_color(INK.light)
        ax.set_ylim(self.height + down - 0.4, -0.6)


def rows_only(ax: Axes) -> None:
    """Hide the grid lines, spine and ticks of ``ax`` that belong to no row."""
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)


def days(epoch_s: float) -> float:
    """Return seconds since 1970 as days, matplotlib's unit of time."""
    return epoch_s / 86_400


def time_scale(ax: Axes, first_s: float, last_s: float, *, ticks: int = 8) -> None:
    """Set a UTC time axis from ``first_s`` to ``last_s``, with at most ``ticks`` ticks."""
    # An axis needs some length: at least a minute.
    last_s = max(last_s, first_s + 60)
    ax.set_xlim(days(first_s), days(last_s))
    # Matplotlib's type hints do not cover these two.
    make_locator: Any = AutoDateLocator
    make_formatter: Any = ConciseDateFormatter
    locator = make_locator(tz=UTC, minticks=3, maxticks=ticks)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(make_formatter(locator, tz=UTC, **_TIMES))
    ax.xaxis.get_offset_text().set_fontsize(8)


def styled() -> Any:
    """Return a context with this style. Figures must be created, drawn and written in it."""
    return mpl.rc_context(_SETTINGS)


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure that needs no window system. Call it inside :func:`styled`."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def panels(figure: Figure, rows: int, columns: int, **how: Any) -> list[list[Axes]]:
    """Return the axes of a grid, row by row."""
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **how).tolist()
    return grid


def picture(figure: Figure, kind: str) -> bytes:
    """Return ``figure`` as the content of a file, in the light scheme.

    :param kind: ``svg`` or ``png``.
    """
    target = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": "kraftjbod"}):
        figure.savefig(target, format=kind, dpi=144, facecolor=SURFACE.light, metadata=metadata)
    return target.getvalue()


def inline_svg(
    figure: Figure, name: str, label: str, titles: Mapping[str, str] | None = None
) -> str:
    """Return ``figure`` as an ``<svg>`` element for an HTML page.

    :param name: prefix of the element's ids, unique in the page.
    :param label: text for screen readers.
    :param titles: texts under the pointer, by the ids that ``set_gid`` set.
    """
    target = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(target.getvalue())  # noqa: S314 - written by the line above
    for child in list(root):
        if child.tag.endswith("metadata"):
            root.remove(child)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}style":
                parent.remove(child)
        _make_native(parent, name)
        if title := (titles or {}).get(parent.get("id", "").removeprefix(f"{name}-")):
            words = ET.Element(f"{{{_SVG}}}title")
            words.text = plain(title, limit=200)
            parent.insert(0, words)
    for size in ("width", "height"):
        del root.attrib[size]
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode")


def _make_native(element: ET.Element, name: str) -> None:
    """Adapt an element to the page: unique ids, colours as CSS variables, and the page's font."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.get('id')}")
    for key in (f"{{{_XLINK}}}href", "href"):
        if element.get(key, "").startswith("#"):
            element.set(key, f"#{name}-{element.attrib[key][1:]}")
    for key in ("style", "fill", "stroke", "clip-path"):
        if (value := element.get(key)) is None:
            continue
        value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        for colour in PALETTE:
            value = value.replace(colour.light, f"var(--{colour.name})")
        if element.tag.endswith("text"):
            value = _FONT.sub(_page_font, value)
        element.set(key, value)


def _page_font(match: re.Match[str]) -> str:
    """Return a font declaration of an SVG with the page's font family."""
    if match[1]:
        return "font-family: inherit"
    return f"font: {match[2].split(chr(39))[0]} system-ui, sans-serif"
