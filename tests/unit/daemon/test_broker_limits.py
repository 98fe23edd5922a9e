"""``broker_limits``: effective limits of a broker, which it logs at start."""

from __future__ import annotations

import pytest

from kraftjbod.daemon.broker_limits import broker_limits
from kraftjbod.daemon.listener_limits import broker_listener_limits
from tests.unit.daemon.test_listener_limits import broker


@pytest.mark.parametrize("max_open_files", [1024, 65_536, -1])
def test_broker_limits_divide_the_descriptors(max_open_files: int) -> None:
    config = broker()
    limits = broker_limits(config, max_open_files)
    kept = limits["descriptors_not_for_clients"]
    assert limits["descriptors"] == (1_048_576 if max_open_files < 0 else max_open_files)
    assert kept == limits["descriptors"] // 8
    derived_limits = broker_listener_limits(config, max_open_files, "PLAINTEXT")
    assert derived_limits.max_client_descriptor == limits["descriptors"] - kept - 1
    assert limits["replicas"] == limits["open_segments"] < limits["descriptors"] * 3 // 4


def test_broker_limits_are_those_of_the_configuration() -> None:
    limits = broker_limits(
        broker(log_open_segments_max="77", log_index_cache_bytes="2000000", max_connections="1234"),
        65_536,
    )
    assert limits["open_segments"] == 77
    assert limits["index_cache_bytes"] == 2_000_000
    assert limits["connections"] == 1234
