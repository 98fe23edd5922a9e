"""The pages that are written from the code say what the code says."""

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
def test_pages_are_written_from_the_code(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "run `make docs`"


def test_every_key_has_a_meaning() -> None:
    keys = [key for kind in (BrokerConfig, ControllerConfig, TopicConfig) for key in keys_of(kind)]
    assert [key.name for key in keys if not key.meaning] == []


def test_every_figure_has_a_meaning() -> None:
    assert figures_on_the_page() == figures_in_code(), (
        "tests/tidy/metrics_page.py says what each is"
    )


def test_every_event_has_a_meaning() -> None:
    assert {event.name for event in events()} == MEANINGS.keys(), (
        "tests/tidy/event_meanings.py says what each means"
    )


def test_every_state_can_be_reached_and_left() -> None:
    for machine in MACHINES:
        reached = {after for after in machine.transitions.values()} | {machine.first}
        assert reached == set(machine.states), machine.title
