"""``Journal`` entries, read from a datagram socket of the test."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.daemon.process.journal import Journal, is_journal


class Listening:
    """The receiving socket in place of journald, and a pipe in place of standard error."""

    def __init__(self, tmp_path: Path) -> None:
        self.address = str(tmp_path / "journal")
        self._reading, self.stderr = os.pipe()
        os.set_blocking(self._reading, False)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.setblocking(False)

    def entries(self) -> list[dict[str, str]]:
        """Return all entries that have arrived, in order."""
        found = []
        while True:
            try:
                found.append(parsed(self.socket.recv(1 << 20)))
            except BlockingIOError:
                return found

    def on_stderr(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(self._reading, 1 << 20).splitlines()]
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.socket.close()
        os.close(self._reading)
        os.close(self.stderr)


def parsed(entry: bytes) -> dict[str, str]:
    """Parse an entry with both forms of a field that the protocol's documentation describes."""
    fields = {}
    while entry:
        name, mark, rest = entry.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == mark
            rest = rest[1:]
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
        entry = rest
    return fields


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    yield made
    made.close()


@pytest.fixture
def journal(listening: Listening) -> Iterator[Journal]:
    made = Journal("kraftjbod-test-1", address=listening.address, fallback_fd=listening.stderr)
    yield made
    made.close()


def event(**fields: object) -> Mapping[str, object]:
    return {"event": "log_dir_offline", "level": "error", "timestamp": "2026-01-01", **fields}


def test_event_is_one_entry_with_one_field_per_key(journal: Journal, listening: Listening) -> None:
    journal.take(event(path="/data/1", count=3, ports={"PLAINTEXT": 9092}))
    assert listening.entries() == [
        {
            "MESSAGE": 'log_dir_offline path=/data/1 count=3 ports={"PLAINTEXT": 9092}',
            "PRIORITY": "3",
            "SYSLOG_IDENTIFIER": "kraftjbod-test-1",
            "KRAFTJBOD_EVENT": "log_dir_offline",
            "KRAFTJBOD_PATH": "/data/1",
            "KRAFTJBOD_COUNT": "3",
            "KRAFTJBOD_PORTS": '{"PLAINTEXT": 9092}',
        }
    ]


@pytest.mark.parametrize(
    ("level", "priority"),
    [("critical", "2"), ("error", "3"), ("warning", "4"), ("info", "6"), ("debug", "7")],
)
def test_event_levels_map_to_syslog_priorities(
    journal: Journal, listening: Listening, level: str, priority: str
) -> None:
    journal.take(event(level=level))
    assert listening.entries()[0]["PRIORITY"] == priority


def test_multiline_values_and_unusual_names_are_encoded(
    journal: Journal, listening: Listening
) -> None:
    journal.take(event(exception="Traceback\n  a = b", reason="x=y\n\nz", **{"größe.in-kB": 1}))
    (entry,) = listening.entries()
    assert entry["KRAFTJBOD_EXCEPTION"] == "Traceback\n  a = b"
    assert entry["KRAFTJBOD_REASON"] == "x=y\n\nz"
    assert entry["KRAFTJBOD_GR_SSE_IN_KB"] == "1"
    assert entry["MESSAGE"].endswith("\nTraceback\n  a = b")


def test_long_values_and_entries_are_truncated_and_counted(
    journal: Journal, listening: Listening
) -> None:
    long = {f"value_{n:02}": "x" * 17_000 for n in range(20)}
    journal.take({"event": "e", "level": "info", **long, "n" * 100: 1})
    (entry,) = listening.entries()
    assert len(entry["KRAFTJBOD_VALUE_00"]) == 16 * 1024
    assert "KRAFTJBOD_VALUE_19" not in entry
    assert entry["KRAFTJBOD_" + "N" * 54] == "1"
    # The message and all values are cut.
    assert entry["KRAFTJBOD_CUT_FIELDS"] == "21"


def test_journal_falls_back_to_standard_error_until_journald_returns(
    listening: Listening, journal: Journal
) -> None:
    listening.socket.close()
    journal.take(event(path="/1"))
    os.unlink(listening.address)
    journal.take(event(path="/2"))
    assert [reported["path"] for reported in listening.on_stderr()] == ["/1", "/2"]
    listening.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.socket.bind(listening.address)
    listening.socket.setblocking(False)
    journal.take(event(path="/3"))
    assert [entry["KRAFTJBOD_PATH"] for entry in listening.entries()] == ["/3"]
    assert listening.on_stderr() == []


def test_events_that_journald_does_not_read_are_dropped_and_reported_later(
    listening: Listening, journal: Journal
) -> None:
    """The event telemetry_dropped comes first once the socket has space again."""
    for number in range(2_000):
        journal.take(event(number=number))
    taken = len(listening.entries())
    assert 0 < taken < 2_000
    journal.take(event(number=2_000))
    first, second = listening.entries()
    assert first["KRAFTJBOD_EVENT"] == "telemetry_dropped"
    assert first["KRAFTJBOD_EVENTS"] == str(2_000 - taken)
    assert first["PRIORITY"] == "4"
    assert second["KRAFTJBOD_NUMBER"] == "2000"
    journal.take(event(number=2_001))
    assert len(listening.entries()) == 1


def test_full_standard_error_does_not_block_the_journal(
    listening: Listening, journal: Journal
) -> None:
    listening.socket.close()
    for number in range(10_000):
        journal.take(event(number=number))
    received_count = len(listening.on_stderr()[:-1])
    assert 0 < received_count < 10_000


def test_is_journal_compares_device_and_inode_of_the_stream(listening: Listening) -> None:
    found = os.fstat(listening.stderr)
    named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    assert is_journal(listening.stderr, named)
    assert not is_journal(listening.socket.fileno(), named)
    assert not is_journal(listening.stderr, {})
    assert not is_journal(listening.stderr, {"JOURNAL_STREAM": "nonsense"})
