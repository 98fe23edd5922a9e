"""Metrics that daemons export, from their first snapshot on."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import MakeCluster
from tests.tidy.metrics_page import FIGURES

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def test_first_metrics_snapshot_has_all_documented_metrics(make_cluster: MakeCluster) -> None:
    """A counter that appears only with its first event gives alerts no initial value."""
    cluster = make_cluster(brokers=1, controllers=3, config={"metrics.snapshot.interval.ms": "200"})
    for daemon in cluster.local.daemons:
        title = "Metrics of a " + ("controller" if daemon.files.role == "controller" else "broker")
        cluster.wait(f"a snapshot of {daemon.files.name}", daemon.files.metrics_path.exists)
        found = json.loads(daemon.files.metrics_path.read_text())
        # Metrics with a placeholder exist once per listener, directory or partition.
        documented = [name for name in FIGURES[title] if "<" not in name]
        assert [name for name in documented if name not in found] == [], daemon.files.name
