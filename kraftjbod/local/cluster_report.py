"""WIRE. The state of a local cluster as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from kraftjbod.local.cluster_process import ClusterProcesses, directory_id
from kraftjbod.local.up_and_down import DaemonState

_COLOURS: Final = {"serving": "green", "running": "yellow", "stopped": "red"}
_ONLINE: Final = "online"


def show_cluster(
    console: Console, cluster: ClusterProcesses, states: Sequence[DaemonState]
) -> None:
    """Print a table of daemons with their states, and the addresses and files of the cluster."""
    table = Table("daemon", "address", "pid", "state", "log directories", box=box.SIMPLE)
    for one in states:
        files = one.daemon.files
        table.add_row(
            files.name,
            one.daemon.client_address,
            str(one.daemon.pid or ""),
            f"[{_COLOURS[one.state]}]{one.state}[/]",
            ", ".join(_directory(path, one) for path in files.log_dirs),
        )
    console.print(table)
    rows = {
        "bootstrap servers": cluster.bootstrap_servers,
        "telemetry": f"{shortened(cluster.run_dir)}/<daemon>/telemetry.jsonl",
        "for programs": shortened(cluster.run_dir / "cluster.json"),
    }
    if cluster.security is not None:
        rows["client settings"] = shortened(cluster.security.properties_path())
    for what, text in rows.items():
        console.print(f"  {what + ':':<19} {text}", highlight=False, soft_wrap=True)


def cluster_document(cluster: ClusterProcesses, states: Sequence[DaemonState]) -> dict[str, Any]:
    """Return the state of a cluster as a JSON document; ``serves``: whether every daemon serves."""
    return {
        "data": str(cluster.run_dir),
        "clusterId": cluster.cluster_id,
        "bootstrapServers": cluster.bootstrap_servers,
        "clientProperties": (
            None if cluster.security is None else str(cluster.security.properties_path())
        ),
        "serves": all(one.state == "serving" for one in states),
        "daemons": [_daemon_document(one) for one in states],
    }


def shortened(path: Path) -> str:
    """Return ``path`` relative to the working directory if ``path`` is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _daemon_document(one: DaemonState) -> dict[str, Any]:
    files = one.daemon.files
    return {
        "name": files.name,
        "id": files.node_id,
        "role": files.role,
        "address": one.daemon.client_address,
        "pid": one.daemon.pid,
        "state": one.state,
        "reason": one.reason,
        "logDirs": [
            {
                "path": str(path),
                "directoryId": directory_id(path),
                "state": one.log_dirs.get(str(path)),
            }
            for path in files.log_dirs
        ],
        "config": str(files.config_path),
        "telemetry": str(files.telemetry_path),
        "metrics": str(files.metrics_path),
    }


def _directory(path: Path, one: DaemonState) -> str:
    """Return the directory's name, with its state unless it is online."""
    state = one.log_dirs.get(str(path), _ONLINE)
    return path.name if state == _ONLINE else f"{path.name} [red]{state}[/red]"
