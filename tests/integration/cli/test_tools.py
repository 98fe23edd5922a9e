"""The tools against a real cluster and beside other clients; each once as a process from bin/."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.checkout import BIN
from tests.integration.clients import COMPRESSIONS, read_confluent, write_confluent
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import called, started, tool

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    yield make_shared_cluster()


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    words = ("--create", "--topic", topic, "--replication-factor", "3")
    done = tool("topics", cluster, *words, "--partitions", str(partitions))
    assert (done.returncode, done.stdout) == (0, f"Created topic {topic}.\n"), done.stderr


def test_topics_tool_creates_alters_and_deletes_topic(cluster: Cluster) -> None:
    create(cluster, "whole", 3)
    shown = started("topics", cluster, "--describe", "--topic", "whole", "--json")
    [topic] = json.loads(shown.stdout)["topics"]
    assert [sorted(p["replicas"]) for p in topic["partitions"]] == [[1, 2, 3]] * 3
    assert tool("topics", cluster, "--alter", "--topic", "whole", "--partitions", "4").stdout == ""
    assert "PartitionCount: 4" in tool("topics", cluster, "--describe", "--topic", "whole").stdout
    again = started("topics", cluster, "--create", "--topic", "whole")
    assert again.returncode == 1
    assert again.stderr == "error: Topic 'whole' already exists.\n"
    assert tool("topics", cluster, "--delete", "--topic", "whole").returncode == 0
    assert "whole" not in tool("topics", cluster, "--list").stdout.split()


def test_console_consumer_prints_lines_of_console_producer(cluster: Cluster) -> None:
    create(cluster, "lines", 3)
    lines = "".join(f"k{n % 7}\tline {n}\n" for n in range(5000))
    words = ("--topic", "lines", "--property", "parse.key=true", "--compression-codec", "gzip")
    sent = started("console-producer", cluster, *words, stdin=lines)
    assert (sent.returncode, sent.stderr) == (0, "")
    words = ("--topic", "lines", "--from-beginning", "--property", "print.key=true")
    read = started("console-consumer", cluster, *words, "--max-messages", "5000")
    assert read.returncode == 0
    assert read.stderr == "Processed a total of 5000 messages\n"
    assert sorted(read.stdout.splitlines()) == sorted(lines.splitlines())
    of_one_key = [line for line in read.stdout.splitlines() if line.startswith("k3\t")]
    assert of_one_key == [line for line in lines.splitlines() if line.startswith("k3\t")]


@pytest.mark.long
def test_console_consumer_in_group_resumes_after_last_member(cluster: Cluster) -> None:
    create(cluster, "in-a-group")
    tool("console-producer", cluster, "--topic", "in-a-group", stdin="a\nb\nc\n")
    words = ("--include", "in-a-gr.*", "--group", "printers", "--from-beginning")
    read = started("console-consumer", cluster, *words, "--max-messages", "2")
    assert (read.returncode, read.stdout) == (0, "a\nb\n"), read.stderr
    described = tool("consumer-groups", cluster, "--describe", "--group", "printers")
    assert described.stdout.split()[9:14] == ["printers", "in-a-group", "0", "2", "3"]
    read = tool("console-consumer", cluster, *words, "--max-messages", "1", "--json")
    assert (json.loads(read.stdout)["value"], read.returncode) == ("c", 0)


@pytest.mark.long
def test_perf_tools_send_and_read_records_in_transactions(cluster: Cluster) -> None:
    create(cluster, "measured", 2)
    words = ("--topic", "measured", "--record-size", "10", "--throughput", "-1")
    transaction = ("--transaction-duration-ms", "5")
    sent = started("producer-perf-test", cluster, *words, "--num-records", "300", *transaction)
    assert sent.stdout.splitlines()[-1].startswith("300 records sent, "), sent.stderr
    words = ("--topic", "measured", "--num-records", "300", "--group", "measuring")
    committed = ("--command-property", "isolation.level=read_committed")
    read = started("consumer-perf-test", cluster, *words, *committed)
    head, figures = read.stdout.splitlines()
    assert head.startswith("start.time, end.time, data.consumed.in.MB"), read.stderr
    assert figures.split(", ")[4] == "300"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_console_consumer_reads_every_compression_of_librdkafka(
    cluster: Cluster, compression: str
) -> None:
    topic = f"from-librdkafka-{compression}"
    create(cluster, topic)
    values = [b"value %d" % n for n in range(100)]
    write_confluent(cluster.bootstrap, topic, values, compression=compression)
    words = ("--topic", topic, "--partition", "0", "--offset", "0", "--max-messages", "100")
    read = tool("console-consumer", cluster, *words)
    assert read.stdout.encode().splitlines() == values


def test_librdkafka_reads_records_of_console_producer(cluster: Cluster) -> None:
    for codec in ("none", "gzip"):
        topic = f"to-librdkafka-{codec}"
        create(cluster, topic)
        words = ("--topic", topic, "--compression-codec", codec)
        assert tool("console-producer", cluster, *words, stdin="a\nb\n").returncode == 0
        assert read_confluent(cluster.bootstrap, topic, 2) == [b"a", b"b"]


def test_log_dirs_tool_describes_sizes(cluster: Cluster) -> None:
    create(cluster, "sized")
    tool("console-producer", cluster, "--topic", "sized", stdin="x" * 1000 + "\n")
    answered = started(
        "log-dirs", cluster, "--describe", "--topic-list", "sized"
    ).stdout.splitlines()
    assert answered[1] == "Received log directory information from brokers 1,2,3"
    brokers = json.loads(answered[2])["brokers"]
    for broker in brokers:
        assert len(broker["logDirs"]) == 3
        [replica] = [r for log_dir in broker["logDirs"] for r in log_dir["partitions"]]
        assert replica["partition"] == "sized-0"
        assert replica["size"] > 1000


def test_health_tool_reports_real_daemons_as_serving(cluster: Cluster) -> None:
    for number, broker in cluster.brokers.items():
        printed = called("health", "--bootstrap-server", broker.address)
        serves = f"broker {number} at {broker.address} serves, 3 of 3 log directories are online\n"
        assert (printed.returncode, printed.stdout, printed.stderr) == (0, serves, "")
    words = [BIN / "kraftjbod-health", "--controller", cluster.local.controller.address]
    printed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (printed.returncode, printed.stderr) == (0, "")
