"""``kraftjbod-pipeline report``: from tables to a page in a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Browser
from pyspark.sql import SparkSession

from kraftjbod.spark.report.report_job import command
from kraftjbod.spark.report.report_page import MOST_BYTES
from kraftjbod.spark.tables import schemas as tables
from tests.spark import report_tables
from tests.spark.browser import OpenPage, chromium, opened

__all__ = ["chromium"]

pytestmark = pytest.mark.timeout(300)

SECTIONS = (
    "findings",
    "timeline",
    "usage",
    "forecast",
    "latency",
    "skew",
    "growth",
    "audit",
    "ingest",
)
FIGURES = ("timeline", "usage", "forecast", "cone", "latency", "plan", "growth")


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The page of a generated day, made by the command."""
    folder = tmp_path_factory.mktemp("report")
    report_tables.write_day(folder / "tables", step_minutes=30)
    page = folder / "new" / "report.html"
    words = ["--tables", str(folder / "tables"), "--out", str(page), "--title", "A <b>day</b>"]
    return page, CliRunner().invoke(command, [*words, "--json"])


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(
    made: tuple[Path, Result], chromium: Browser, request: pytest.FixtureRequest
) -> Iterator[OpenPage]:
    with opened(chromium, made[0], scheme=request.param) as page:
        yield page


def test_report_summary_is_json_with_the_figures(made: tuple[Path, Result]) -> None:
    page, result = made
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert (
        printed["report"] == str(page) and printed["size_bytes"] == page.stat().st_size < MOST_BYTES
    )
    picked = ("brokers", "log_dirs", "states", "cordoned", "findings", "audit_differences")
    assert {name: printed[name] for name in picked} == {
        "brokers": 3,
        "log_dirs": 12,
        "states": {"online": 11, "offline": 1},
        "cordoned": 1,
        "findings": 3,
        "audit_differences": 0,
    }
    assert printed["missing_tables"] == []
    assert printed["to"] - printed["from"] == report_tables.HOURS * 3600
    assert list(page.parent.iterdir()) == [page]


def test_report_page_makes_no_requests_and_reports_no_errors(
    shown: OpenPage, made: tuple[Path, Result]
) -> None:
    assert [url for url in shown.requests if not url.startswith("data:")] == [made[0].as_uri()]
    assert shown.troubles == []


def test_report_page_shows_every_section_and_plot(shown: OpenPage) -> None:
    assert shown.page.title() == "A <b>day</b>"
    assert [shown.box(f"section#{name}")[0] > 900 for name in SECTIONS] == [True] * len(SECTIONS)
    for name in FIGURES:
        width, height = shown.box(f"#figure-{name} svg")
        assert width > 900 and height > 100, name
    assert shown.texts("section.missing h2") == []


def test_report_page_has_readable_contrast_in_both_schemes(shown: OpenPage) -> None:
    worst = shown.worst_contrast()
    assert worst["ratio"] >= 3.0, worst


def test_report_page_shows_hostile_names_as_text(shown: OpenPage) -> None:
    page = shown.page
    assert page.locator("img, body > script:not([type='application/json'])").count() == 0
    assert page.locator("script").count() == 1
    assert shown.rows("topics")[0][0] == report_tables.HOSTILE_TOPIC
    # In a drawing a long name is shortened in the middle, and stays text.
    assert any('">&$x^2$' in text for text in shown.texts("#figure-timeline svg text"))
    assert report_tables.HOSTILE_TOPIC in shown.texts("#figure-growth svg text")


def test_report_page_tables_have_the_values_of_the_frames(shown: OpenPage) -> None:
    assert shown.rows("outliers") == [
        ["offline", "2", "/data/d1", "2026-11-21 14:00:00", "—", "—"],
        ["errors", "2", "/data/d1", "2026-11-21 14:00:00", "12", "0"],
        ["slow", "1", "/data/d0", "2026-11-21 06:00:00", "41.5 ms", "3.4 ms"],
    ]
    forecasts = shown.rows("forecasts")
    assert [row[:2] for row in forecasts] == [
        ["1", "/data/d3"],
        ["2", report_tables.HOSTILE_PATH],
        ["2", "/data/d0"],
        ["1", "/data/d2"],
    ]
    assert forecasts[0][4:] == ["19 h 12 min", "2026-11-22 19:12", "15 h 21 min to 1 d 1 h"]
    assert forecasts[-1][-1] == "160 d to perhaps never"
    assert shown.rows("records") == [
        ["clicks", "good", "", "7", "700 B"],
        ["clicks", "late", "2 h late", "2", "200 B"],
        [report_tables.HOSTILE_TOPIC, "corrupt", "no JSON", "1", "100 B"],
    ]
    assert "0 differences" in shown.texts("#audit .lead")[0]


def test_report_page_has_the_data_of_plots_as_json(shown: OpenPage) -> None:
    data = json.loads(shown.page.locator("#report-data").text_content() or "")
    assert set(FIGURES) | {"summary"} == set(data)
    begin = report_tables.BEGIN.timestamp()
    failed = [
        (one["broker_id"], one["path"], start - begin, end - begin)
        for one in data["timeline"]["dirs"]
        for start, end, state, *_ in one["runs"]
        if state == "offline"
    ]
    assert failed == [(2, "/data/d1", 14 * 3600, 24 * 3600)]
    assert len(data["usage"]["dirs"]) == len(data["latency"]["dirs"]) == 12


def test_report_page_plots_have_titles_under_the_pointer(shown: OpenPage) -> None:
    titles = shown.texts("#figure-timeline svg title")
    assert "broker 1 /data/d3: saturated, 2026-11-21 18:00:00 to 2026-11-21 20:30:00 UTC" in titles
    moving = [title for title in titles if "moves:" in title]
    assert [title.partition(", 2026")[0] for title in moving] == [
        "broker 3 /data/d2: online, cordoned, moves: 0 in, 3 out"
    ]


@pytest.mark.parametrize("width", [400, 1240])
def test_report_page_fits_into_the_window(
    made: tuple[Path, Result], chromium: Browser, width: int
) -> None:
    with opened(chromium, made[0], width=width) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_report_page_on_paper_has_light_colours_and_no_links(
    made: tuple[Path, Result], chromium: Browser
) -> None:
    with opened(chromium, made[0], scheme="dark") as seen:
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert not seen.page.locator("nav").is_visible()
        ink = seen.page.evaluate("getComputedStyle(document.body).color")
        assert ink == "rgb(28, 33, 40)"


@pytest.fixture
def report(spark: SparkSession, tmp_path: Path) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        where = ["--tables", str(tmp_path / "tables"), "--out", str(tmp_path / "report.html")]
        return CliRunner().invoke(command, [*where, *words])

    return run


def test_report_of_empty_folder_is_refused(report: Callable[..., Result], tmp_path: Path) -> None:
    result = report()
    assert result.exit_code == 1
    assert f"{tmp_path}/tables holds none of the tables that a report shows" in result.stderr
    assert "kraftjbod-pipeline telemetry --bootstrap-server" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_report_names_missing_tables_with_the_commands_for_them(
    report: Callable[..., Result], tmp_path: Path, chromium: Browser
) -> None:
    def write(name: str, schema: Any, rows: Any) -> None:
        report_tables.write_table(tmp_path / "tables", name, schema, rows)

    write("plan_dirs", tables.PLAN_DIRS, report_tables.plan_dirs(1, 2))
    write("audit_differences", tables.AUDIT_DIFFERENCES, report_tables.differences())
    write("log_dir_windows", tables.LOG_DIR_WINDOWS, [])
    result = report()
    assert result.exit_code == 0, result.output
    assert "Without: log_dir_samples, log_dir_forecasts" in result.stdout
    with opened(chromium, tmp_path / "report.html") as seen:
        assert seen.troubles == []
        missing = dict(
            zip(
                seen.texts("section.missing h2"),
                seen.texts("section.missing .command"),
                strict=True,
            )
        )
        for heading in ("Findings", "Disks over time", "Usage", "Forecast", "Latency", "Topics"):
            assert missing.pop(heading).startswith("kraftjbod-pipeline telemetry ")
        assert missing.pop("Ingest").endswith(f"--tables {tmp_path}/tables")
        assert missing == {}
        assert seen.texts("#audit .lead") == [
            "3 differences, 2 missing, 1 duplicate, found by the last audit."
        ]
        assert seen.rows("differences")[0][:4] == [
            "missing",
            report_tables.HOSTILE_TOPIC,
            "1",
            "17",
        ]
        assert seen.box("#figure-plan svg")[0] > 900
