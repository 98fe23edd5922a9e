"""Report of a stopped cluster as text and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from kraftjbod.local.cluster_report import cluster_document, show_cluster
from kraftjbod.local.up_and_down import DaemonState, daemon_states, make_cluster


async def test_cluster_report_shows_states_and_addresses(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, controllers=1, brokers=1, dirs=2)
    states = await daemon_states(cluster)
    reported = cluster_document(cluster, states)
    assert json.loads(json.dumps(reported)) == reported
    assert (reported["serves"], reported["bootstrapServers"]) == (False, cluster.bootstrap_servers)
    assert [one["state"] for one in reported["daemons"]] == ["stopped", "stopped"]
    broker = cluster.brokers[1]
    sick = DaemonState(
        daemon=broker, state="serving", log_dirs={str(cluster.dir_path(1, 2)): "offline"}
    )
    out = io.StringIO()
    show_cluster(Console(file=out, width=80), cluster, [states[0], sick])
    for expected in ("stopped", "serving", "disk-1, disk-2 offline", broker.address):
        assert expected in out.getvalue()
