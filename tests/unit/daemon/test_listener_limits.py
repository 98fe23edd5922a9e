"""Limits of listeners: connections that are reserved for brokers, for any configured maximum."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import MIB
from kraftjbod.daemon.listener_limits import (
    broker_listener_limits,
    controller_listener_limits,
    memory_budget,
)
from kraftjbod.net.connection_quotas import QuotaLimits

COMMON = {"controller.quorum.voters": "100@127.0.0.1:9093"}


def broker(**more: str) -> BrokerConfig:
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://:9092",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return BrokerConfig.from_properties(COMMON | values, source="b", base_dir="/")


def controller(**more: str) -> ControllerConfig:
    values = {
        "process.roles": "controller",
        "node.id": "100",
        "listeners": "CONTROLLER://:9093",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return ControllerConfig.from_properties(COMMON | values, source="c", base_dir="/")


@pytest.mark.parametrize(
    ("quotas", "clients", "pending"),
    [
        (broker_listener_limits(broker(), 1_048_576, "PLAINTEXT").quotas, 9000, 100),
        (broker_listener_limits(broker(max_connections="11"), 1_048_576, "PLAINTEXT").quotas, 6, 2),
        (broker_listener_limits(broker(max_connections="1"), 1_048_576, "PLAINTEXT").quotas, 1, 0),
        (
            broker_listener_limits(
                broker(max_connections_reserved_for_brokers="0"), 1_048_576, "PLAINTEXT"
            ).quotas,
            10_000,
            0,
        ),
        (controller_listener_limits(controller(), 1_048_576).quotas, 500, 100),
        (controller_listener_limits(controller(max_connections="40"), 1_048_576).quotas, 20, 5),
    ],
)
def test_listener_quotas_reserve_connections_for_brokers(
    quotas: QuotaLimits, clients: int, pending: int
) -> None:
    assert (quotas.clients, quotas.pending) == (clients, pending)


def test_listener_limits_of_addresses_memory_and_idle_time_are_configured() -> None:
    config = broker(
        max_connections_per_ip="7",
        max_connections_per_ip_overrides="10.0.0.1:9, [::1]:3",
        connections_max_idle_ms="5",
        queued_max_request_bytes=str(101 * MIB),
    )
    limits = broker_listener_limits(config, 1_048_576, "PLAINTEXT")
    assert (limits.quotas.max_per_host, limits.max_idle_ms) == (7, 5)
    assert limits.quotas.per_host == {"10.0.0.1": 9, "::1": 3}
    assert memory_budget(config).requests.max_bytes == 101 * MIB
    assert (
        controller_listener_limits(controller(connections_max_idle_ms="6"), 1_048_576).max_idle_ms
        == 6
    )


def test_broker_listener_limits_of_one_listener_override_those_of_all() -> None:
    config = BrokerConfig.from_properties(
        COMMON
        | {
            "process.roles": "broker",
            "node.id": "1",
            "listeners": "PLAINTEXT://:9092,OUTER://:9093",
            "max.connections": "20",
            "listener.name.outer.max.connections": "8",
        },
        source="b",
        base_dir="/",
    )
    most = {
        name: broker_listener_limits(config, 1_048_576, name).quotas.max_connections
        for name in ("PLAINTEXT", "OUTER")
    }
    assert most == {"PLAINTEXT": 20, "OUTER": 8}
