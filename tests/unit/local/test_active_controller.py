"""``active_controller``: the active controller according to the controllers' telemetry."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kraftjbod.local.active_controller import activated_after, active_controller, led_term
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess


def _logs(controller: DaemonProcess, *events: tuple[float, str, int]) -> None:
    controller.files.telemetry_path.write_text(
        "".join(
            json.dumps(
                {
                    "event": event,
                    "term": term,
                    "timestamp": datetime.fromtimestamp(at_s, UTC).isoformat(),
                }
            )
            + "\n"
            for at_s, event, term in events
        )
    )


def test_active_controller_is_that_of_the_newest_term_among_running_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=1, controllers=3)
    first, second, third = cluster.controllers.values()
    _logs(first, (1.0, "controller_active", 1), (2.0, "controller_resigned", 1))
    # Killed as the active one, and back as a follower, so that it logged no resignation.
    _logs(second, (3.0, "controller_active", 2))
    _logs(third, (4.0, "controller_active", 3))
    assert [led_term(one) for one in (first, second, third)] == [0, 2, 3]
    assert active_controller([first, second, third]) is None, "none of them runs"
    monkeypatch.setattr(DaemonProcess, "is_running", True)
    assert active_controller([first, second, third]) is third
    assert activated_after([first, second, third], 1.5) == 3.0
    assert activated_after([first, second, third], 4.0) is None
