"""The running count on standard error."""

from __future__ import annotations

import pytest

from kraftjbod.cli.terminal.progress import counter


def test_counting_leaves_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with counter("sent") as advance:
        advance(2)
        advance(3)
    assert capsys.readouterr().out == ""
