"""``PeerWarnings``: many warnings about one peer are logged as a few lines and a number."""

from __future__ import annotations

import io
import json
from collections import Counter

import structlog

from kraftjbod.core.peer_warnings import EVERYBODY_ELSE, LeftOut, PeerWarnings
from kraftjbod.core.telemetry import configure, get_logger


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_peer_warnings_admit_first_ones_of_a_minute_then_the_count_of_the_rest() -> None:
    clock = Clock()
    peers = PeerWarnings(clock)
    reported = [peers.admit("broke", "10.0.0.1") for _ in range(1_000)]
    assert reported.count(0) == 5
    assert reported.count(None) == 995
    assert peers.admit("broke", "10.0.0.2") == 0
    assert peers.admit("turned_away", "10.0.0.1") == 0
    clock.now_s = 60.0
    assert peers.admit("broke", "10.0.0.1") == 995
    assert peers.admit("broke", "10.0.0.1") == 0


def test_peer_warnings_settle_reports_suppressed_ones_and_forgets_the_peer() -> None:
    clock = Clock()
    peers = PeerWarnings(clock)
    for _ in range(7):
        peers.admit("broke", "a")
    peers.admit("broke", "b")
    assert list(peers.settle()) == []
    clock.now_s = 61.0
    assert list(peers.settle()) == [LeftOut("broke", "a", 2)]
    assert list(peers.settle()) == []


def test_peer_warnings_count_all_events_in_bounded_memory() -> None:
    clock = Clock()
    peers, admitted, counted = PeerWarnings(clock), 0, 0
    for number in range(10_000):
        left_out = peers.admit("broke", f"host-{number % 3_000}")
        admitted += left_out is not None
        counted += left_out or 0
    clock.now_s = 61.0
    rest = Counter({one.host: one.times for one in peers.settle()})
    assert len(rest) <= 1_001
    assert rest[EVERYBODY_ELSE] > 0
    assert admitted + counted + rest.total() == 10_000


def test_configure_limits_only_warnings_about_peers() -> None:
    out = io.StringIO()
    configure(json_lines=True, level="info", stream=out, peer_warnings=PeerWarnings(Clock()))
    try:
        for port in range(48_660):
            get_logger().warning("connection_broke_protocol", peer=f"10.0.0.1:{port}")
            get_logger().info("connection_came", peer=f"10.0.0.1:{port}") if port < 10 else None
        for _ in range(10):
            get_logger().warning("log_dir_slow", log_dir="/d1")
    finally:
        structlog.reset_defaults()
    logged = Counter(json.loads(line)["event"] for line in out.getvalue().splitlines())
    assert logged == {"connection_broke_protocol": 5, "connection_came": 10, "log_dir_slow": 10}
