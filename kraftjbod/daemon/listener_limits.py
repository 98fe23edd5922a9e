"""WIRE. The limits of a daemon's listeners, from its configuration.

A broker's listeners share one memory budget. Connections are counted per listener.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.descriptor_budget import DescriptorBudget
from kraftjbod.net.connection import ConnectionLimits
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.listener import ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.request_session import SessionLimits

#: A quarter of the places for brokers is open to connections that are not yet identified as one's.
_PENDING_SHARE: Final = 4
_MAX_PENDING: Final = 100


def memory_budget(config: BrokerConfig | ControllerConfig) -> MemoryBudget:
    """Create the memory budget for all listeners of the daemon to share."""
    return MemoryBudget(_memory_limits(config))


def memory_before_login(config: BrokerConfig | ControllerConfig) -> MemoryBudget:
    """Create the memory budget for all connections on which no client has logged in yet."""
    max_bytes = config.sasl_server_max_unauthenticated_bytes
    limits = _memory_limits(config)
    return MemoryBudget(replace(limits, max_request_bytes=max_bytes, max_answer_bytes=max_bytes))


def _memory_limits(config: BrokerConfig | ControllerConfig) -> MemoryLimits:
    return MemoryLimits(
        max_request_bytes=config.queued_max_request_bytes,
        max_answer_bytes=config.queued_max_response_bytes,
        receive_timeout_ms=config.socket_receive_timeout_ms,
        read_timeout_ms=config.socket_send_timeout_ms,
        min_progress_bytes=config.socket_min_progress_bytes,
        grace_ms=config.socket_memory_grace_ms,
    )


def broker_listener_limits(config: BrokerConfig, max_open_files: int, name: str) -> ListenerLimits:
    """Return the limits of one listener of a broker.

    ``max.connections.reserved.for.brokers`` places, at most half of all, are kept for brokers.

    :param name: upper-case name of the listener.
    """
    most = config.of_listener(name).max_connections
    return _limits(
        config,
        max_open_files,
        most,
        min(config.max_connections_reserved_for_brokers, most // 2),
        ConnectionLimits(max_frame_bytes=config.socket_request_max_bytes),
        SessionLimits(
            max_in_flight_requests=config.max_in_flight_requests_per_connection,
            max_in_flight_bytes=config.max_in_flight_bytes_per_connection,
        ),
    )


def controller_listener_limits(config: ControllerConfig, max_open_files: int) -> ListenerLimits:
    """Return the limits of a controller's listener.

    ``controller.max.unregistered.connections`` places, at most half of all, are open to clients
    that are not members of the cluster. The others are kept for members.
    """
    most = config.max_connections
    return _limits(
        config,
        max_open_files,
        most,
        max(most - config.controller_max_unregistered_connections, most // 2),
        ConnectionLimits(max_frame_bytes=config.rpc_max_request_bytes),
        SessionLimits(
            max_in_flight_requests=config.rpc_max_in_flight,
            max_in_flight_bytes=config.rpc_max_request_bytes,
        ),
    )


def _limits(
    config: BrokerConfig | ControllerConfig,
    max_open_files: int,
    max_connections: int,
    reserved: int,
    connection: ConnectionLimits,
    session: SessionLimits,
) -> ListenerLimits:
    return ListenerLimits(
        connection=connection,
        session=session,
        quotas=QuotaLimits(
            max_connections=max_connections,
            reserved=reserved,
            pending=min(_MAX_PENDING, -(-reserved // _PENDING_SHARE)),
            max_per_host=config.max_connections_per_ip,
            per_host=config.connection_limits_by_ip,
        ),
        max_idle_ms=config.connections_max_idle_ms,
        max_client_descriptor=DescriptorBudget(max_open_files).max_client_descriptor,
        backlog=config.socket_listen_backlog_size,
    )
