"""``AuditTrail`` writes, rotates, and counts what it drops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kraftjbod.authorizer.standard_authorizer import Decision
from kraftjbod.broker.access import Access
from kraftjbod.core.acl import AclOperation, AclResourceType
from kraftjbod.daemon.process.audit_trail import AuditTrail


class Client:
    """The fields of an access that a line has."""

    principal = "User:CN=a"
    host = "10.0.0.1"
    listener_name = "CLIENTS"
    api = "Produce"


def make_trail(path: Path | None, **limits: int) -> AuditTrail:
    settings = {"max_bytes": 100_000, "max_files": 2} | limits
    return AuditTrail(None if path is None else str(path), wall_ms=lambda: 1_500, **settings)


def record(trail: AuditTrail, name: str = "t") -> None:
    client: Any = Client()
    assert isinstance(client, Client | Access)
    denied = Decision(False, "DefaultDeny")
    trail.record(client, AclOperation.WRITE, AclResourceType.TOPIC, name, denied)


def test_audit_line_names_client_operation_resource_and_result(tmp_path: Path) -> None:
    trail = make_trail(tmp_path / "audit.log")
    record(trail)
    assert trail.close(30)
    assert json.loads((tmp_path / "audit.log").read_text()) == {
        "time": "1970-01-01T00:00:01.500Z",
        "result": "denied",
        "principal": "User:CN=a",
        "host": "10.0.0.1",
        "listener": "CLIENTS",
        "request": "Produce",
        "operation": "WRITE",
        "resource_type": "TOPIC",
        "resource": "t",
        "rule": "DefaultDeny",
    }


def test_audit_file_is_rotated_and_the_oldest_is_removed(tmp_path: Path) -> None:
    for number in range(5):
        trail = make_trail(tmp_path / "audit.log", max_bytes=300)
        record(trail, f"topic-{number}")
        assert trail.close(30)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    assert [json.loads((tmp_path / name).read_text())["resource"] for name in names] == [
        "topic-4",
        "topic-3",
        "topic-2",
    ]


def test_audit_counts_lines_that_cannot_be_written(tmp_path: Path) -> None:
    """The next line that is written names their number."""
    folder = tmp_path / "absent"
    trail = make_trail(folder / "audit.log")
    record(trail)
    while not trail.dropped_total:
        pass
    folder.mkdir()
    record(trail)
    assert trail.close(30)
    lines = [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
    assert lines[1:] == [{"dropped": 1}]
    assert trail.dropped_total == 1


def test_audit_lines_beyond_its_queue_are_written_or_counted_as_dropped(tmp_path: Path) -> None:
    trail = make_trail(tmp_path / "audit.log", max_waiting_lines=1)
    for _ in range(1_000):
        record(trail)
    assert trail.close(30)
    text = (tmp_path / "audit.log").read_text()
    written = sum("resource" in line for line in text.splitlines())
    assert written + trail.dropped_total == 1_000


def test_audit_without_path_writes_nothing(tmp_path: Path) -> None:
    trail = make_trail(None)
    record(trail)
    assert trail.close(0)
    assert not list(tmp_path.iterdir())
