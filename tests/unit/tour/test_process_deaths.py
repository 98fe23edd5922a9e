"""Controllers' events about a killed broker; tests/integration kills processes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour import process_deaths
from kraftjbod.tour.disk_death import Death


def test_missed_after_counts_first_event_of_the_broker_after_its_death(tmp_path: Path) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=3, controllers=3)
    events = [(-5.0, "broker_gone", 3), (0.1, "broker_gone", 2), (0.25, "broker_gone", 3)]
    cluster.controllers[101].files.telemetry_path.write_text(
        "".join(
            json.dumps(
                {
                    "event": event,
                    "broker_id": broker_id,
                    "timestamp": datetime.fromtimestamp(1_000_000.0 + after_s, UTC).isoformat(),
                }
            )
            + "\n"
            for after_s, event, broker_id in events
        )
    )
    death = Death(at_s=1.0, wall_s=1_000_000.0, mode=0)
    assert process_deaths._missed_after_ms(cluster, 3, death) == 250
    assert process_deaths._missed_after_ms(cluster, 1, death) is None


def test_clients_return_is_left_out_for_a_broker_that_led_nothing() -> None:
    """All its leaders may be on the disk that failed before, so that no client writes to it."""
    death = Death(at_s=1.0, wall_s=1_000_000.0, mode=0)
    assert process_deaths._clients_return(frozenset(), death, 1.2, None) == []
    seen = process_deaths._clients_return(frozenset({3}), death, 1.2, 1.5)
    assert [milestone.after_ms for milestone in seen] == [200, 500]
    never = process_deaths._clients_return(frozenset({3}), death, 1.2, None)
    assert [milestone.after_ms for milestone in never] == [200, None]
