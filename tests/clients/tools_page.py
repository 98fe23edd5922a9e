"""Writes docs/tools.md (``make tools-page``) from runs of Kafka's and kraftjbod's tools.

Kafka's tools run against a kraftjbod cluster of three brokers, and kraftjbod's tools against one
broker of Apache Kafka. A row is a command; a cell shows whether the command ended with 0 and
printed the expected text. The jars are those of ``java/kafka_jars.txt``.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import BIN, ROOT
from tests.clients import programs

PAGE: Final = ROOT / "docs/tools.md"
_TIMEOUT_S: Final = 180
_START_S: Final = 180
_TOOLS: Final = "org.apache.kafka.tools"
_HEAD: Final = (
    "# Tools\n\n"
    "This page says which of Kafka's command line tools were tested with a kraftjbod cluster, and "
    "which of kraftjbod's tools with Apache Kafka {version}. `make tools-page` runs all rows of "
    "the table and writes this page.\n"
    "In each row both tools got the same arguments. *yes*: the tool ended with exit code 0 and "
    "printed the expected text. `{{csv}}`, `{{topics}}`, `{{plan}}` and `{{json}}` stand for files "
    "with the input of the command.\n\n"
    "| tool | arguments | Kafka's tool, kraftjbod cluster | kraftjbod's tool, Kafka |\n"
    "|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Row:
    """A command for both tools.

    ``java`` is the class of Kafka's tool. ``ours`` is kraftjbod's script if it differs from
    ``tool``. ``said`` is a regular expression that the output must contain.
    """

    tool: str
    java: str
    words: str
    said: str = ""
    stdin: str = ""
    ours: str | None = None

    @property
    def script(self) -> str:
        return self.tool if self.ours is None else self.ours


_C: Final = "consumer-groups"
_CG: Final = f"{_TOOLS}.consumer.group.ConsumerGroupCommand"
_T: Final = f"{_TOOLS}.TopicCommand"
_X: Final = f"{_TOOLS}.TransactionsCommand"
_Q: Final = f"{_TOOLS}.MetadataQuorumCommand"
#: Run in this order: later rows depend on earlier ones. Names in braces are of ``_FILES``.
ROWS: Final[Sequence[Row]] = (
    Row("topics", _T, "--create --topic t --partitions 2 --replication-factor 1", "t"),
    Row("topics", _T, "--list", "t"),
    Row("topics", _T, "--describe --topic t", r"PartitionCount: 2"),
    Row("topics", _T, "--alter --topic t --partitions 3"),
    Row("topics", _T, "--create --topic u --partitions 1 --replication-factor 1", "u"),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--alter --entity-type topics --entity-name t --add-config retention.ms=3600000",
        "Completed",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--describe --entity-type topics --entity-name t",
        "retention.ms=3600000",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--describe --entity-type brokers --entity-name 1 --all",
        "log.dirs",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--alter --entity-type brokers --entity-default --add-config log.retention.ms=7200000",
        "Completed",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--alter --entity-type topics --entity-name t --delete-config retention.ms",
        "Completed",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--alter --entity-type groups --entity-name g "
        "--add-config consumer.session.timeout.ms=50000",
        "Completed",
    ),
    Row(
        "configs",
        "kafka.admin.ConfigCommand",
        "--describe --entity-type groups --entity-name g",
        "consumer.session.timeout.ms=50000",
    ),
    Row(
        "console-producer",
        f"{_TOOLS}.ConsoleProducer",
        "--topic t --reader-property parse.key=true --reader-property key.separator=:",
        "",
        "k:one\nk:two\n",
    ),
    Row(
        "console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--topic t --from-beginning "
        "--max-messages 2 --timeout-ms 60000 --formatter-property print.key=true",
        r"k\tone\nk\ttwo",
    ),
    Row(
        "console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--topic t --group readers --from-beginning --max-messages 1 --timeout-ms 60000",
        "one",
    ),
    Row(
        "console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--include t|u --group readers --max-messages 1 --timeout-ms 60000",
        "two",
    ),
    Row(_C, _CG, "--describe --group readers", r"readers +t +\d +2 +2 +0"),
    Row(
        "console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--topic __consumer_offsets --from-beginning --max-messages 3 --timeout-ms 60000 "
        f"--formatter {_TOOLS}.consumer.OffsetsMessageFormatter",
        "",
    ),
    Row(
        "console-producer",
        f"{_TOOLS}.ConsoleProducer",
        "--topic u --reader-property parse.headers=true --reader-property null.marker=NIL "
        "--reader-property ignore.error=true --compression-codec zstd "
        "--request-required-acks all",
        "",
        "a:1,b:NIL\tthree\nfour\n",
    ),
    Row(
        "console-consumer",
        f"{_TOOLS}.consumer.ConsoleConsumer",
        "--topic u --partition 0 --offset 0 --max-messages 2 --timeout-ms 60000 "
        "--isolation-level read_committed --formatter-property print.headers=true "
        "--formatter-property print.offset=true --formatter-property null.literal=nil "
        "--formatter-property key.separator=;",
        "Offset:0;a:1,b:nil;three\nOffset:1;NO_HEADERS;four",
    ),
    Row("get-offsets", f"{_TOOLS}.GetOffsetShell", "--topic t", r"t:\d:2"),
    Row("get-offsets", f"{_TOOLS}.GetOffsetShell", "--topic t --time max-timestamp", r"t:\d:[01]"),
    Row("get-offsets", f"{_TOOLS}.GetOffsetShell", "--topic t --time earliest-local", r"t:0:0"),
    Row(
        "get-offsets",
        f"{_TOOLS}.GetOffsetShell",
        "--topic-partitions t:0-1,u --exclude-internal-topics --time earliest",
        r"t:0:0\nu:0:0",
    ),
    Row("get-offsets", f"{_TOOLS}.GetOffsetShell", "--topic t --time latest-tiered"),
    Row(_C, _CG, "--reset-offsets --group g --topic t --to-earliest --execute", "NEW-OFFSET"),
    Row(_C, _CG, "--list", "g"),
    Row(_C, _CG, "--list --state --type", "g +Classic +Empty"),
    Row(_C, _CG, "--list --state empty --type classic", "g +Classic +Empty"),
    Row(_C, _CG, "--describe --group g", r"LOG-END-OFFSET"),
    Row(_C, _CG, "--describe --group g --state", "Empty"),
    Row(_C, _CG, "--describe --all-groups --members", "no active members"),
    Row(
        _C,
        _CG,
        "--reset-offsets --group g --all-topics --shift-by 1 --dry-run --export",
        r"t,2,1",
    ),
    Row(_C, _CG, "--reset-offsets --group g --topic t:0,2 --to-offset 1 --execute", "NEW-OFFSET"),
    Row(_C, _CG, "--reset-offsets --group g --topic t --by-duration PT1H --execute", "NEW-OFFSET"),
    Row(
        _C,
        _CG,
        "--reset-offsets --group g --all-topics --to-datetime 2026-01-01T00:00:00.000 --dry-run",
        "NEW-OFFSET",
    ),
    Row(_C, _CG, "--reset-offsets --group g --all-topics --to-current --dry-run", "NEW-OFFSET"),
    Row(_C, _CG, "--reset-offsets --group g --from-file {csv} --execute", r"g +t +1 +0"),
    Row(_C, _CG, "--reset-offsets --group g --topic t --to-latest --execute", "NEW-OFFSET"),
    Row(_C, _CG, "--delete-offsets --group g --topic t:0", "Request succeed"),
    Row(_C, _CG, "--delete --group g", "was successful"),
    Row(_C, _CG, "--validate-regex t.*", "is valid"),
    Row("transactions", _X, "list", "TransactionalId"),
    Row("transactions", _X, "list --duration-filter 60000", "TransactionalId"),
    Row("transactions", _X, "list --transactional-id-pattern x.*", "TransactionalId"),
    Row("transactions", _X, "describe-producers --topic t --partition 0", "ProducerId"),
    Row("transactions", _X, "find-hanging --topic t", "CoordinatorEpoch"),
    Row("transactions", _X, "find-hanging --broker-id 1", "CoordinatorEpoch"),
    Row("groups", f"{_TOOLS}.GroupsCommand", "--list", "readers +Classic +consumer"),
    Row("log-dirs", f"{_TOOLS}.LogDirsCommand", "--describe --topic-list t", '"partition":"t-'),
    Row(
        "leader-election",
        f"{_TOOLS}.LeaderElectionCommand",
        "--election-type preferred --all-topic-partitions",
        "",
    ),
    Row(
        "leader-election",
        f"{_TOOLS}.LeaderElectionCommand",
        "--election-type unclean --topic t --partition 0",
        "Valid replica already elected for partitions t-0",
    ),
    Row("reassign-partitions", f"{_TOOLS}.reassign.ReassignPartitionsCommand", "--list"),
    Row(
        "reassign-partitions",
        f"{_TOOLS}.reassign.ReassignPartitionsCommand",
        "--generate --topics-to-move-json-file {topics} --broker-list 1",
        "Proposed partition reassignment configuration",
    ),
    Row(
        "reassign-partitions",
        f"{_TOOLS}.reassign.ReassignPartitionsCommand",
        "--execute --reassignment-json-file {plan}",
        "Successfully started partition reassignment",
    ),
    Row(
        "reassign-partitions",
        f"{_TOOLS}.reassign.ReassignPartitionsCommand",
        "--verify --reassignment-json-file {plan}",
        "Reassignment of partition u-0 is (completed|still in progress)",
    ),
    Row(
        "delete-records",
        f"{_TOOLS}.DeleteRecordsCommand",
        "--offset-json-file {json}",
        "low_watermark",
    ),
    Row("features", f"{_TOOLS}.FeatureCommand", "describe", "metadata.version"),
    Row("metadata-quorum", _Q, "describe --status", "LeaderId"),
    Row("metadata-quorum", _Q, "describe --replication", "LogEndOffset"),
    Row("cluster", f"{_TOOLS}.ClusterTool", "cluster-id", "Cluster ID"),
    Row("cluster", f"{_TOOLS}.ClusterTool", "list-endpoints", "ENDPOINT TYPE|HOST"),
    Row(
        "producer-perf-test",
        f"{_TOOLS}.ProducerPerformance",
        "--topic t --num-records 100 --record-size 100 --throughput -1",
        "100 records sent",
    ),
    Row(
        "consumer-perf-test",
        f"{_TOOLS}.ConsumerPerformance",
        "--topic t --num-records 50 --timeout 60000",
        "data.consumed.in.MB",
    ),
    Row(
        "producer-perf-test",
        f"{_TOOLS}.ProducerPerformance",
        "--topic t --num-records 500 --payload-monotonic --throughput 1000 "
        "--transactional-id measured --transaction-duration-ms 100 --warmup-records 100 "
        "--print-metrics",
        r"400 steady state records sent[^\0]*Metric Name",
    ),
    Row(
        "consumer-perf-test",
        f"{_TOOLS}.ConsumerPerformance",
        "--topic t --num-records 500 --timeout 60000 --group measured --hide-header",
        r", [5-7]\d\d, ",
    ),
    Row("transactions", _X, "describe --transactional-id measured", "CompleteCommit"),
    Row(
        "transactions",
        _X,
        "forceTerminateTransaction --transactionalId measured",
    ),
    Row("broker-api-versions", f"{_TOOLS}.BrokerApiVersionsCommand", "", "Produce"),
    Row("topics", _T, "--delete --topic t"),
)
#: Tools whose subcommand comes before ``--bootstrap-server``.
_ADDRESS_LAST: Final = {"cluster"}
_NOTES: Final = (
    "\n*no such tool* in the last column: kraftjbod has no such tool.\n"
    "`kafka-dump-log.sh` and `kraftjbod-dump-log` print the same text for files of both clusters. "
    "Files of the cluster metadata are an exception, because their format differs.\n"
    "`make tools-page` does not run `kraftjbod-acls` and `kraftjbod-configs --entity-type "
    "users|clients|ips`. They have the flags and the output of Kafka's tools. Integration tests "
    "check them with a kraftjbod cluster. `kraftjbod-acls` has no `--bootstrap-controller`.\n"
)


def _run(command: Sequence[str], row: Row) -> str:
    """Run a command and return "yes", or "no: " and the reason."""
    try:
        done = subprocess.run(
            ["nice", *command],
            input=row.stdin,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return "no: does not end"
    said = done.stdout + done.stderr
    if done.returncode == 0 and re.search(row.said, said):
        return "yes"
    lines = [line for line in said.splitlines() if line.strip()] or ["says nothing"]
    print(f"--- {' '.join(command[-12:])}: {done.returncode}\n{said[-1500:]}", file=sys.stderr)
    return f"no: {(done.stderr.splitlines() or lines)[0][:120]}".replace("|", r"\|")


#: Contents of the files that commands name, by placeholder.
_FILES: Final = {
    "{json}": '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "offset": 0}]}',
    "{topics}": '{"version": 1, "topics": [{"topic": "t"}]}',
    "{csv}": "t,1,0\n",
    "{plan}": '{"version": 1, "partitions": [{"topic": "u", "partition": 0, "replicas": [1]}]}',
}


def _words(row: Row, address: str, files: Path) -> list[str]:
    text = row.words
    for name in _FILES:
        text = text.replace(name, str(files / name.strip("{}")))
    words = text.split()
    server = ["--bootstrap-server", address]
    return [*words, *server] if row.tool in _ADDRESS_LAST else [*server, *words]


def _java(kafka: Path) -> list[str]:
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka}/*"]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def _kafka_broker(kafka: Path, home: Path) -> Iterator[str]:
    """Run a combined node of Apache Kafka and yield its address."""
    clients, controllers = _free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        "listeners": f"PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controllers}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": home / "d1",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    config = home / "kafka.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = [*_java(kafka)]
    format_words = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ"]
    subprocess.run([*java, *format_words, "-c", str(config)], check=True, capture_output=True)
    with (home / "kafka.log").open("wb") as log:
        broker = subprocess.Popen(
            ["nice", *java[:1], "-Xmx1g", *java[2:], "kafka.Kafka", str(config)],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _START_S
        while socket.socket().connect_ex(("127.0.0.1", clients)):
            if broker.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Kafka does not start: {home}/kafka.log")
            time.sleep(0.5)
        yield f"127.0.0.1:{clients}"
    finally:
        broker.kill()
        broker.wait()


def _theirs_of_ours(kafka: Path, files: Path) -> list[str]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with LocalCluster(brokers=3, dirs=2, config=settings) as cluster:
        results = []
        for row in ROWS:
            words = _words(row, cluster.bootstrap_servers, files)
            results.append(_run([*_java(kafka), row.java, *words], row))
            print(f"Kafka's {row.tool} {row.words}: {results[-1]}", flush=True)
        return results


def _ours_of_theirs(kafka: Path, files: Path) -> list[str]:
    results = []
    with _kafka_broker(kafka, files) as address:
        for row in ROWS:
            script = BIN / f"kraftjbod-{row.script}"
            words = _words(row, address, files)
            result = _run([str(script), *words], row) if script.exists() else "no such tool"
            results.append(result)
            print(f"our {row.tool} {row.words}: {result}", flush=True)
    return results


def cell(words: str) -> str:
    """Return the arguments as a cell of a Markdown table."""
    return f"`{words}`".replace("|", r"\|") if words else ""


def page(version: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    lines = (
        f"| {row.tool} | {cell(row.words)} | {their} | {our} |"
        for row, their, our in zip(ROWS, theirs, ours, strict=True)
    )
    return _HEAD.format(version=version) + "\n".join(lines) + "\n" + _NOTES


def main() -> None:
    try:
        kafka = programs.kafka()
    except programs.ToolchainMissing as e:
        raise SystemExit(f"tools-page: {e}") from e
    (tools,) = kafka.glob("kafka-tools-[0-9]*.jar")
    with tempfile.TemporaryDirectory() as home:
        files = Path(home)
        for name, text in _FILES.items():
            (files / name.strip("{}")).write_text(text)
        theirs = _theirs_of_ours(kafka, files)
        ours = _ours_of_theirs(kafka, files)
    PAGE.write_text(page(tools.stem.removeprefix("kafka-tools-"), theirs, ours))
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
