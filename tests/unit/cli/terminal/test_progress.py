"""``counter`` prints a running count on standard error."""

from __future__ import annotations

import pytest

from kraftjbod.cli.terminal.progress import counter


def test_counter_shows_the_sum_on_standard_error_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich writes as it does to a terminal.
    with counter("sent") as advance:
        advance(2_000)
        advance(3)
    written = capsys.readouterr()
    assert "2,003 records sent" in written.err
    assert written.out == ""
