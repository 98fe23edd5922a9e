"""Tests that the generated pages of the manual match the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.topic_config import TopicConfig
from tests.tidy.config_page import keys_of
from tests.tidy.event_meanings import MEANINGS
from tests.tidy.events_page import events
from tests.tidy.manual import PAGES
from tests.tidy.metrics_page import figures_in_code, figures_on_the_page
from tests.tidy.states_page import MACHINES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_generated_pages_match_the_code(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "run `make docs`"


def test_config_keys_have_descriptions() -> None:
    keys = [key for kind in (BrokerConfig, ControllerConfig, TopicConfig) for key in keys_of(kind)]
    assert [key.name for key in keys if not key.meaning] == []


def test_metrics_have_descriptions() -> None:
    assert figures_on_the_page() == figures_in_code(), (
        "tests/tidy/metrics_page.py says what each is"
    )


def test_events_have_descriptions() -> None:
    assert {event.name for event in events()} == MEANINGS.keys(), (
        "tests/tidy/event_meanings.py says what each means"
    )


def test_states_in_the_manual_are_reached_by_transitions() -> None:
    for machine in MACHINES:
        reached = {after for after in machine.transitions.values()} | {machine.first}
        assert reached == set(machine.states), machine.title
