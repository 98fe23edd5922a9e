"""Sessions on this machine and on a standalone cluster, started by jobs and by ``spark-submit``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kraftjbod.spark.session.session import is_local, spark_session
from kraftjbod.spark.session.spark_errors import SPARK_ERRORS, spark_reason
from tests.checkout import ROOT
from tests.integration.conftest import MakeCluster
from tests.spark.running import environment, run, run_python
from tests.spark.standalone import StandaloneCluster, standalone_cluster

# Tries each of its arguments as a master, and prints the results.
TRY_MASTERS = """
import sys
from kraftjbod.core.errors import StartupError
from kraftjbod.spark.session.session import spark_session
for master in sys.argv[1:]:
    try:
        spark_session("try", master=master)
    except StartupError as e:
        print(e)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone") / "cluster") as cluster:
        yield cluster


def test_spark_session_returns_a_running_session(spark: SparkSession) -> None:
    assert spark_session("another", master="spark://nowhere:1") is spark


def test_session_time_zone_is_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_session_has_the_source_registered(spark: SparkSession) -> None:
    with pytest.raises(SPARK_ERRORS) as caught:
        spark.read.format("kraftjbod").load()
    assert spark_reason(caught.value).startswith("give one of assign, subscribe")


def test_is_local_recognizes_local_masters() -> None:
    assert [m for m in ("local", "local[*]", "local[2]", "local[2,3]") if not is_local(m)] == []
    assert [m for m in ("local-cluster[1,1,512]", "yarn", "spark://a:1") if is_local(m)] == []


def test_session_with_invalid_master_is_refused_before_java_starts() -> None:
    """With an empty PATH, Java could not start."""
    masters = ("sprak://a:1", "yarn", "spark://a", "spark://127.0.0.1:1,127.0.0.1:2")
    done = run_python("-c", TRY_MASTERS, *masters, env=environment(PATH=""))
    assert done.stderr == ""
    refused = "[Errno 111] Connection refused"
    assert done.stdout.splitlines() == [
        "--master sprak://a:1 is no master of Spark: expected local[*], local[N], "
        "spark://HOST:PORT, yarn or k8s://URL",
        "--master yarn needs the cluster's configuration: set HADOOP_CONF_DIR or YARN_CONF_DIR "
        "to the folder that holds yarn-site.xml",
        "--master spark://a: a is not HOST:PORT",
        "no Spark master answers at spark://127.0.0.1:1,127.0.0.1:2 "
        f"(127.0.0.1:1: {refused}; 127.0.0.1:2: {refused})",
    ]


@pytest.mark.timeout(600)
def test_session_refused_by_spark_prints_one_line() -> None:
    done = run_python("tests/spark/probe.py", "places", "--master", "local[x]")
    assert done.returncode == 1
    assert done.stderr == (
        "error: probe: Spark did not start on local[x]: Could not parse Master URL: 'local[x]'\n"
    )


def conf_options(cluster: StandaloneCluster) -> list[str]:
    return [word for key, value in cluster.conf.items() for word in ("--conf", f"{key}={value}")]


def places(cluster: StandaloneCluster) -> dict[str, object]:
    """Return the result of the probe on that cluster: the package in a zip, and the executors'
    Python."""
    return {
        "module": "./kraftjbod.zip/kraftjbod/core/errors.py",
        "python": cluster.conf["spark.pyspark.python"],
        "zone": "UTC",
    }


@pytest.mark.timeout(600)
@pytest.mark.process
def test_job_runs_on_cluster_without_the_package(
    cluster: StandaloneCluster, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Its executors, and the driver's workers that plan reads, have only the shipped package."""
    topics = make_cluster(brokers=1, dirs=1)
    topics.create_topic("events", partitions=4)
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for number in range(100):
        producer.produce("events", str(number), partition=number % 4)
    assert producer.flush(30) == 0
    done = run(
        *(str(ROOT / "bin" / "kraftjbod-pipeline"), "ingest", "--topics", "events", "--json"),
        *("--bootstrap-server", topics.bootstrap, "--tables", str(tmp_path / "tables")),
        *("--master", cluster.master_url, *conf_options(cluster)),
    )
    assert (done.returncode, [x for x in done.stderr.splitlines() if not x.startswith("•")]) == (
        0,
        [],
    )
    assert json.loads(done.stdout)["topics"] == {"events": {"good": 100, "late": 0, "corrupt": 0}}


@pytest.mark.timeout(600)
def test_spark_submit_keeps_its_master(cluster: StandaloneCluster) -> None:
    """It prints both streams of a Python program on standard output."""
    programs = Path(sys.executable).parent
    activated = environment(PATH=f"{programs}{os.pathsep}{os.environ['PATH']}")
    submit = (
        *(str(programs / "spark-submit"), "--master", cluster.master_url),
        *(*conf_options(cluster), "--conf", f"spark.pyspark.driver.python={sys.executable}"),
    )
    refused = run(*submit, "tests/spark/probe.py", "places", "--master", "local[2]", env=activated)
    assert refused.returncode == 1
    assert (
        "error: probe: --master local[2] after spark-submit: give the master to spark-submit, "
        "before the name of this program\n"
    ) in refused.stdout
    done = run(*submit, "tests/spark/probe.py", "places", "--json", env=activated)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["master"] == cluster.master_url
    assert found["places"] == [places(cluster)]
