"""What the documents for operators name is there: events, configuration keys, options of tools."""

from __future__ import annotations

import re

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.topic_config import TopicConfig
from tests.tidy.house import PACKAGE, ROOT

KEYS = BrokerConfig.keys() | ControllerConfig.keys() | TopicConfig.keys()
CODE = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
#: A word with at least one dot, or underscore, as keys and events have.
KEY = re.compile(r"`([a-z]+(?:\.[a-z]+){2,})(?:=[^`]*)?`")
EVENT = re.compile(r"`((?:log_dir|broker|damaged)_[a-z_]+)`")
OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
COMMAND = re.compile(r"`(kraftjbod-[a-z-]+)")


@pytest.fixture(scope="module", params=["WHAT_HAPPENS_WHEN.md", "TESTING.md", "METADATA_BACKUP.md"])
def text(request: pytest.FixtureRequest) -> str:
    return (PACKAGE / request.param).read_text()


def test_keys_are_keys(text: str) -> None:
    assert set(KEY.findall(text)) - KEYS == set()


def test_events_are_told(text: str) -> None:
    assert [event for event in set(EVENT.findall(text)) if f'"{event}"' not in CODE] == []


def test_options_are_options(text: str) -> None:
    missing = [
        o for o in set(OPTION.findall(text)) if f"--{o}" not in CODE and f'"{o}"' not in CODE
    ]
    assert missing == []


def test_commands_are_installed(text: str) -> None:
    scripts = (ROOT / "pyproject.toml").read_text()
    assert [name for name in set(COMMAND.findall(text)) if f"{name} =" not in scripts] == []
