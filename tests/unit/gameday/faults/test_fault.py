"""What cannot be played is an error of a kind of its own: `all` goes on without it."""

from __future__ import annotations

from kraftjbod.core.errors import StartupError
from kraftjbod.gameday.faults.fault import CannotPlay


def test_it_is_reported_like_any_other() -> None:
    assert issubclass(CannotPlay, StartupError)
    assert str(CannotPlay("mounting needs root")) == "mounting needs root"
