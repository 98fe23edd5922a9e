"""Building blocks of a page, with hostile names."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from kraftjbod.spark.report import report_page as html
from kraftjbod.spark.report.report_page import Html, Section, Tile
from kraftjbod.spark.style.plot_style import PALETTE

EVIL = "</td><script>alert('1')</script>&\"\x00\u202e"
SAFE = "&lt;/td&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&#34;\ufffd\ufffd"


class Reader(HTMLParser):
    """Collects elements and text as a browser does."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_table_escapes_all_but_html_values() -> None:
    made = html.table("t", "c", ["a", "b", "c"], [[EVIL, html.moment(EVIL), 3]])
    assert f"<td>{SAFE}</td>" in made
    assert f'<td><span class="time">{SAFE}</span></td>' in made
    assert "<td>3</td>" in made
    assert html.command(Html("<b>")) == '<pre class="command"><b></pre>'


@pytest.mark.parametrize(
    "made",
    [
        html.tiles([Tile(figure=EVIL, label=EVIL, tone=EVIL)]),
        html.table(EVIL, EVIL, [EVIL], [[EVIL]]),
        html.figure(EVIL, "<svg></svg>", EVIL),
        html.state(EVIL),
        html.meter(0.5, EVIL),
        html.moment(EVIL),
        html.command(EVIL),
        html.page(
            EVIL, EVIL, Html(""), [Section(name=EVIL, heading=EVIL, lead=EVIL)], {EVIL: EVIL}
        ),
    ],
)
def test_building_block_with_hostile_name_adds_no_script_element(made: str) -> None:
    reader = read(made)
    scripts = reader.tags.count("script")
    assert scripts == ("html" in reader.tags)
    assert any("alert('1')" in text for text in reader.text)


def test_table_reports_the_number_of_omitted_rows() -> None:
    made = html.table("t", "Things", ["a", "b"], [[1, "x"], [2, "y"]], numbers=[0], left_out=1200)
    reader = read(made)
    assert [text for text in reader.text if text.strip()] == [
        *("Things", "a", "b", "1", "x", "2", "y", "and 1,200 more")
    ]
    assert made.count('class="number"') == 3
    with pytest.raises(ValueError):
        html.table("t", "Things", ["a", "b"], [[1]])


def test_state_html_has_css_class_of_the_state_and_sanitizes_unknown_names() -> None:
    assert '<span class="state offline">' in html.state("OFFLINE")
    assert 'class="state ab"' in html.state('a" onclick="b').replace("onclick", "")


@pytest.mark.parametrize(
    ("share", "width", "tone"),
    [(0.5, "50.0%", ""), (0.8, "80.0%", "warn"), (0.93, "93.0%", "bad"), (7, "100.0%", "bad")],
)
def test_meter_has_width_and_tone_of_the_share(share: float, width: str, tone: str) -> None:
    made = html.meter(share, "half")
    assert f"width:{width}" in made and f'class="meter {tone}"' in made


def test_meter_without_share_is_text() -> None:
    assert html.meter(None, "—") == "—"


def test_json_text_escapes_elements_and_replaces_infinity() -> None:
    data = {"a": [1.5, float("nan"), float("inf"), None], "b": {EVIL: (EVIL, 1)}}
    text = html.json_text(data)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": [1.5, None, None, None], "b": {EVIL: [EVIL, 1]}}


def test_page_forbids_network_access() -> None:
    made = html.page("t", "s", Html(""), [], {})
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in made
    assert "http://" not in made and "https://" not in made
    assert made.isascii()


def test_css_variables_have_values_in_both_schemes() -> None:
    style = html.style()
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", style)) | {c.name for c in PALETTE}
    in_dark = "".join(re.findall(r"@media screen[^{]*{(.*?)}\s*}", style, re.DOTALL))
    in_light = re.sub(r"@media screen[^{]*{.*?}\s*}", "", style, flags=re.DOTALL)
    for scheme in (in_light, in_dark):
        assert used <= set(re.findall(r"--([a-z0-9-]+): ?#", scheme))


def test_css_has_no_external_resources() -> None:
    style = html.style()
    assert "url(" not in style and "@import" not in style and "</" not in style
