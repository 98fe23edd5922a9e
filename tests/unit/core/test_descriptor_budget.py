"""DescriptorBudget: shares of RLIMIT_NOFILE."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.descriptor_budget import DescriptorBudget
from kraftjbod.core.node_config import NodeConfig


@pytest.mark.parametrize(
    ("limit", "replicas", "client_descriptor"),
    [
        (64, 0, 55),
        (1024, 640, 895),
        (65_536, 49_024, 57_343),
        (-1, 786_304, 917_503),
    ],
)
def test_descriptor_budget_divides_the_limit_of_open_files(
    limit: int, replicas: int, client_descriptor: int
) -> None:
    budget = DescriptorBudget(limit)
    assert (budget.max_replicas, budget.max_client_descriptor) == (replicas, client_descriptor)


def test_compose_file_limit_covers_partitions_of_one_request() -> None:
    """On each broker: the new replicas of one request and the connections that the defaults
    allow."""
    compose = (Path(__file__).parents[3] / "docker-compose.yml").read_text()
    found = re.search(r"nofile: \$\{MAX_OPEN_FILES:-(\d+)\}", compose)
    assert found is not None
    budget = DescriptorBudget(int(found[1]))
    most_made = ControllerConfig.model_fields["max_partitions_per_request"].default
    most_connections = NodeConfig.model_fields["max_connections"].default
    assert budget.max_replicas >= most_made
    assert budget.max_client_descriptor >= most_made + most_connections
