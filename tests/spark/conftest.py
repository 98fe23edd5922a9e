"""One Spark session per test run, and the clusters of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kraftjbod.spark import spark_session
from tests.integration.conftest import (
    cluster_dirs,
    collected_sockets,
    make_cluster,
    make_shared_cluster,
)
from tests.spark.running import QUICK_JAVA

__all__ = ["cluster_dirs", "collected_sockets", "make_cluster", "make_shared_cluster"]

_HERE = Path(__file__).parent
# Small on purpose: frames of tests have ten rows.
CONF = {
    "spark.sql.shuffle.partitions": "2",
    # A new plan for each stage costs more than ten rows do.
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}

# A time-out within a call to Java puts the session of all later tests out of step.
_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads; two shuffle partitions, UTC, no UI."""
    warehouse = tmp_path_factory.mktemp("spark-warehouse")
    session = spark_session(
        "tests", master="local[2]", conf={**CONF, "spark.sql.warehouse.dir": str(warehouse)}
    )
    yield session
    session.stop()
