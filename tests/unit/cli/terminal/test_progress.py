"""``counter`` prints a running count on standard error."""

from __future__ import annotations

import pytest

from kraftjbod.cli.terminal.progress import counter


def test_counter_writes_nothing_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with counter("sent") as advance:
        advance(2)
        advance(3)
    assert capsys.readouterr().out == ""
