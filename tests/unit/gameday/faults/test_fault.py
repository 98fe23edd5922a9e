"""``CannotPlay``: a separate error, so that `all` continues with the other scenarios."""

from __future__ import annotations

from kraftjbod.core.errors import StartupError
from kraftjbod.gameday.faults.fault import CannotPlay


def test_cannot_play_is_a_startup_error_with_its_message() -> None:
    assert issubclass(CannotPlay, StartupError)
    assert str(CannotPlay("mounting needs root")) == "mounting needs root"
