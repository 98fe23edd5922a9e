"""WIRE. ``ClientStatistics``: collects librdkafka's statistics, and prints them at the end.

librdkafka sends a document with its statistics once a second, while the client is polled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import click

from kraftjbod.cli.perf.client_figures import figure_lines
from kraftjbod.core.errors import OperatingError

_INTERVAL_MS: Final = 1_000
_PATIENCE_S: Final = 2 * _INTERVAL_MS / 1000
_POLL_S: Final = 0.1


class ClientStatistics:
    """Receives the statistics of a librdkafka client, and prints the newest ones."""

    def __init__(self) -> None:
        self._newest: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the librdkafka settings that make a client pass its statistics to this object,
        once per interval.
        """
        return {"statistics.interval.ms": str(_INTERVAL_MS), "stats_cb": self._take}

    def print(self, poll: Callable[[float], object]) -> None:
        """Print the newest statistics; poll the client until it has sent some.

        :raises OperatingError: none arrived within 2 s.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._newest is None and time.monotonic() < deadline_s:
            poll(_POLL_S)
        if self._newest is None:
            raise OperatingError("librdkafka said nothing of its figures in time")
        for line in figure_lines(self._newest):
            click.echo(line)

    def _take(self, document: str) -> None:
        self._newest = document
