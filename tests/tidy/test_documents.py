"""Events, keys, options, commands, files and links in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.group_config import GroupOverrides
from kraftjbod.core.topic_config import TopicConfig
from tests.checkout import ROOT
from tests.clients import tools_page
from tests.tidy import manual
from tests.tidy.sources import PACKAGE

KEYS = BrokerConfig.keys() | ControllerConfig.keys() | TopicConfig.keys() | GroupOverrides.keys()
CODE = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
#: Keys have at least two dots, and events an underscore.
KEY = re.compile(r"`([a-z]+(?:\.[a-z]+){2,})(?:=[^`]*)?`")
EVENT = re.compile(r"`((?:log_dir|broker|damaged)_[a-z_]+)`")
OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
#: Options of systemctl and docker-compose.
FOREIGN = {"no-legend", "no-color"}
COMMAND = re.compile(r"`(kraftjbod-[a-z-]+)")


#: Pages that people write. Tests compare the generated pages with the code.
PAGES = [ROOT / "README.md", *sorted(set(ROOT.glob("docs/**/*.md")) - manual.PAGES.keys())]
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.fixture(scope="module", params=PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def text(request: pytest.FixtureRequest) -> str:
    path: Path = request.param
    return path.read_text()


def test_documents_name_existing_config_keys(text: str) -> None:
    assert set(KEY.findall(text)) - KEYS == set()


def test_documents_name_logged_events(text: str) -> None:
    assert [event for event in set(EVENT.findall(text)) if f'"{event}"' not in CODE] == []


def test_documents_name_existing_options(text: str) -> None:
    options = set(OPTION.findall(text)) - FOREIGN
    assert [o for o in options if f"--{o}" not in CODE and f'"{o}"' not in CODE] == []


def test_documents_name_installed_commands(text: str) -> None:
    scripts = (ROOT / "pyproject.toml").read_text()
    assert [name for name in set(COMMAND.findall(text)) if f"{name} =" not in scripts] == []


def test_documents_name_existing_files() -> None:
    """A page may name a file by its name or the end of its path."""
    folders = (PACKAGE, ROOT / "tests", ROOT / "conf")
    files = [path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    pages = [ROOT / "CONTRIBUTING.md", PACKAGE / "ARCHITECTURE.md", *PAGES]
    missing = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"`([a-z][a-z_/0-9]*\.py)`", page.read_text())
        if not any(file.endswith(f"/{name}") for file in files)
    }
    assert missing == {("testing.md", "test_my_app.py")}


def test_clients_page_has_pinned_versions() -> None:
    """Debian's kcat is not pinned here, and another test covers Spark's connector."""
    folder = ROOT / "tests/clients"
    pins = (
        ("requirements.lock", r"^(confluent-kafka|kafka-python|aiokafka)==(.+)$"),
        ("tests/clients/java/jars.txt", r" (kafka-clients|kafka-streams|connect-runtime) (.+)$"),
        ("tests/clients/go/go.mod", r"/(franz-go|sarama) v(.+)$"),
        ("tests/clients/node/package.json", r'"(kafkajs)": "(.+)"'),
        ("tests/clients/rust/Cargo.toml", r'^(rdkafka) = { version = "=([^"]+)"'),
    )
    pinned = [
        pin for path, at in pins for pin in re.findall(at, (ROOT / path).read_text(), re.MULTILINE)
    ]
    page = (ROOT / "docs/clients.md").read_text()
    # Some clients have a row for each group protocol.
    rows = r"^\| ([\w-]+?)(?:-consumer)? \(\w+\) \| ([\d.]+) \|"
    table = re.findall(rows, page, re.MULTILINE)
    elsewhere = {each[0] for each in set(table) - set(pinned)}
    assert elsewhere == {"kcat", "spark-sql-kafka-0-10"}
    assert set(pinned) <= set(table), f"run `make clients`: {folder} has other versions"


def test_tools_page_has_all_rows() -> None:
    page = (ROOT / "docs/tools.md").read_text()
    asked = [f"| {row.tool} | {tools_page.cell(row.words)} |" for row in tools_page.ROWS]
    written = [row for row in page.splitlines() if row.startswith("| ")][1:]
    assert len(written) == len(asked)
    assert all(map(str.startswith, written, asked)), "run `make tools-page`: it asks otherwise"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub writes them."""
    return {
        "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(page.read_text())
    }


def test_documents_link_to_existing_targets() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.md")]
    broken = [
        (page.name, path, anchor)
        for page in pages
        for path, anchor in LINK.findall(page.read_text())
        if "://" not in path
        for target in [(page.parent / path) if path else page]
        if not target.exists()
        or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert broken == []
