"""The drawn state machines are the ones that run."""

from __future__ import annotations

from tests.tidy.diagrams import MACHINES, PAGE, page


def test_the_page_is_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == page(), "run `make diagrams`"


def test_every_state_can_be_reached_and_left() -> None:
    for machine in MACHINES:
        reached = {after for after in machine.transitions.values()} | {machine.first}
        assert reached == set(machine.states), machine.title
