"""Common parts of plots: labels, scales, and SVG for a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from kraftjbod.spark.style.plot_style import (
    PALETTE,
    byte_scale,
    inline_svg,
    natural,
    new_figure,
    panels,
    plain,
    short_paths,
    styled,
)

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("/data/d1", 60, "/data/d1"),
        ("a\x00b\nc\u202ed", 60, "a\ufffdb\ufffdc\ufffdd"),
        ("/data/\udcff", 60, "/data/\ufffd"),
        ("/very/long/path/of/a/disk", 11, "/very…/disk"),
        (12, 60, "12"),
    ],
)
def test_plain_replaces_control_characters_and_shortens(
    text: object, limit: int, shown: str
) -> None:
    assert plain(text, limit=limit) == shown


def test_natural_sorts_numbers_in_names() -> None:
    names = ["/d/10", "/d/9", "/c/11", "/d/", "/d"]
    assert sorted(names, key=natural) == ["/c/11", "/d", "/d/", "/d/9", "/d/10"]


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (["/data/d1", "/data/d2"], ["/data/d1", "/data/d2"]),
        (
            ["/var/lib/kraftjbod/disk-1", "/var/lib/kraftjbod/disk-2"],
            ["…/disk-1", "…/disk-2"],
        ),
        # A common end is removed as well.
        (
            ["/mnt/disk-1/kraftjbod/logs", "/mnt/disk-20/kraftjbod/logs"],
            ["…/disk-1/…", "…/disk-20/…"],
        ),
        (
            ["/disk-1/kraftjbod/all-logs", "/disk-2/kraftjbod/all-logs"],
            ["/disk-1/…", "/disk-2/…"],
        ),
        # One inside the other.
        (["/var/lib/kraftjbod/data", "/var/lib/kraftjbod/data/x"], ["…/data", "…/data/x"]),
        (["/var/lib/kraftjbod/the-only-one"], ["…/the-only-one"]),
        (["relative/and/rather/long/a", "b"], ["/relative/a…ather/long/a", "/b"]),
    ],
)
def test_short_paths_remove_common_parts(paths: list[str], shown: list[str]) -> None:
    assert short_paths(paths) == shown


@pytest.mark.parametrize(
    ("top", "per", "labels"),
    [
        (20 * 1024**2, "/s", ["0", "5 MiB/s", "10 MiB/s", "15 MiB/s", "20 MiB/s"]),
        (1.9 * 1024**4, "", ["0", "0.5 TiB", "1 TiB", "1.5 TiB"]),
        (700, "", ["0", "200 B", "400 B", "600 B"]),
        (0, "", ["0", "0.2 B", "0.4 B", "0.6 B", "0.8 B"]),
    ],
)
def test_byte_scale_has_round_ticks(top: float, per: str, labels: list[str]) -> None:
    with styled():
        ax = panels(new_figure(4, 2), 1, 1)[0][0]
        ax.set_xlim(0, max(top, 1))
        byte_scale(ax.xaxis, top, per)
        ax.figure.draw_without_rendering()
        seen = [
            label.get_text()
            for label in ax.get_xticklabels()
            if 0 <= label.get_position()[0] <= max(top, 0.99)
        ]
        assert seen == labels


def test_palette_colours_are_unique() -> None:
    lights = [colour.light for colour in PALETTE]
    assert len(set(lights)) == len(lights)
    assert len({colour.name for colour in PALETTE}) == len(lights)


def drawn(name: str, title: str = "a <title> & $more$") -> str:
    with styled():
        figure = new_figure(4, 2)
        ax = panels(figure, 1, 1)[0][0]
        line = ax.plot([1, 2], [3, 4], color=PALETTE[0].light)[0]
        line.set_gid("first")
        ax.set_title(title)
        return inline_svg(figure, name, "two points", {"first": "from 3 to 4 <b>"})


def test_svg_has_role_title_and_palette_variables() -> None:
    svg = drawn("one")
    root = ET.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == "two points"
    assert root.get("viewBox") and "width" not in root.attrib
    text = ["".join(e.itertext()) for e in root.iter(f"{SVG}text")]
    assert "a <title> & $more$" in text
    assert not list(root.iter(f"{SVG}style")) and "metadata" not in svg and "<?xml" not in svg
    # Palette colours are always variables; the font is the page's.
    assert not any(colour.light in svg for colour in PALETTE)
    assert "DejaVu" not in svg and "var(--ink)" in svg
    line = next(e for e in root.iter() if e.get("id") == "one-first")
    assert line[0].tag == f"{SVG}title" and line[0].text == "from 3 to 4 <b>"


def test_svgs_of_one_page_share_no_id() -> None:
    def ids(svg: str) -> set[str]:
        return {e.attrib["id"] for e in ET.fromstring(svg).iter() if "id" in e.attrib}

    one, two = drawn("one"), drawn("two")
    assert ids(one) and not ids(one) & ids(two)
    for svg in (one, two):
        wanted = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
        assert wanted and wanted <= ids(svg)


def test_svg_of_equal_figures_is_equal() -> None:
    assert drawn("one") == drawn("one")
