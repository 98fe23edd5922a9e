"""WIRE. ``broker_limits``: the limits of a broker as numbers, for one line of its log.

Each number is the maximum that the broker uses or accepts. docs/operate.md lists the memory and
descriptors that one replica, segment or connection needs.
"""

from __future__ import annotations

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.descriptor_budget import DescriptorBudget


def broker_limits(config: BrokerConfig, max_open_files: int) -> dict[str, int]:
    """Return the limits by name, for the event ``broker_limits``.

    :param max_open_files: RLIMIT_NOFILE of the process; negative if unlimited, which counts as
        1,048,576 descriptors.
    """
    budget = DescriptorBudget(max_open_files)
    return {
        "descriptors": budget.descriptors,
        "replicas": budget.max_replicas,
        "open_segments": config.log_open_segments_max or budget.max_open_segments,
        "descriptors_not_for_clients": budget.descriptors - budget.max_client_descriptor - 1,
        "connections": config.max_connections,
        "connections_for_brokers": config.max_connections_reserved_for_brokers,
        "index_cache_bytes": config.log_index_cache_bytes,
        "request_bytes": config.queued_max_request_bytes,
        "response_bytes": config.queued_max_response_bytes,
        "compaction_bytes": config.log_cleaner_dedupe_buffer_size,
    }
