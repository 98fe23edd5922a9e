"""The tested clients. Each has a small program in its language.

A program takes the bootstrap address, a verb and the verb's arguments. It prints JSON lines, each
an object with one key; the first is the client's ``version``. Its exit code is 0 on success.
The verbs and their output:

* ``produce TOPIC FIRST COUNT PAUSE_MS``: sends the numbers from FIRST on as key and value, with
  acks=all, in bursts of 20 with a pause between. It prints ``sent: [partition, offset, number]``
  per acknowledgement; partition and offset are -1 if the client does not report them.
* ``idempotent``: the same with an idempotent producer.
* ``read TOPIC COUNT``: reads COUNT records of all partitions, assigned, from the beginning.
  It prints ``read: [partition, offset, number]`` per record.
* ``group TOPIC GROUP``: joins the group and commits each record after printing it. It leaves at the
  end of its standard input. It prints ``owns: [partition, ...]`` at each change of the assignment,
  ``read`` as above, ``uncommitted: reason`` for a refused commit, and finally ``left``.
* ``copy FROM TO ID COUNT``: copies numbers in transactions that commit the group's offsets, and
  aborts a third of the transactions; their numbers are copied again. It prints ``committed: n`` or
  ``aborted: n`` per transaction.
* ``committed TOPIC COUNT`` (Java): as ``read``, with isolation level read_committed.
* ``fence TOPIC ID`` (Java): a second producer fences the first. It prints ``fenced``, whether the
  first cannot commit, and ``ended``, whether the first cannot begin another transaction.
* ``admin TOPIC GROUP``: creates, changes and deletes the topic, describes and deletes the group.
  It prints a line per operation with the state afterwards: :data:`ADMIN`.

The clients come from their registries in versions that are pinned here: ``requirements.lock``,
``go.sum``, ``package-lock.json``, ``Cargo.lock``, and ``java/jars.txt`` and ``java/kafka_jars.txt``
with digests. Programs are built once, into ``.cache/clients``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.checkout import ROOT

HERE: Final = Path(__file__).parent
BUILT: Final = ROOT / ".cache/clients"
_BUILD_TIMEOUT_S: Final = 1_500

#: Key of ``lacks``: the member stays in its group when the coordinator moves.
STAYS: Final = "stays"
#: Key of ``lacks``: the member commits exactly the records that it has printed.
COMMITS: Final = "commits"
#: Expected output of ``admin``, for a topic with 3 and then 4 partitions, and an empty group that
#: committed 100 records.
ADMIN: Final[Mapping[str, Any]] = {
    "create_topic": [3, "3600000"],
    "alter_config": "7200000",
    "create_partitions": 4,
    "list_groups": True,
    "describe_group": ["empty", 0],
    "group_offsets": 100,
    "list_offsets": 0,
    "delete_group": False,
    "delete_topic": False,
}


class ToolchainMissing(Exception):
    """A tool that the client's language needs is not installed; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A tested client. ``build`` builds its program if needed and returns its command."""

    name: str
    language: str
    registry: str
    build: Callable[[], list[str]]
    #: Verbs, and operations of ``admin``, that the client does not support, with a description.
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def _tools(*names: str) -> list[str]:
    """Return the paths of executables.

    :raises ToolchainMissing: one is not installed.
    """
    paths = [shutil.which(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise ToolchainMissing(f"no {name} on this machine")
    return [path for path in paths if path is not None]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a file lock, so that parallel test processes build one after the other."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(command: Sequence[str], cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        ["nice", *command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}"


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.clients.python.{module}"]


def _kcat() -> list[str]:
    _tools("kcat")
    return _python("kcat")


def _go(program: str) -> list[str]:
    (go,) = _tools("go")
    out = BUILT / "go"
    with _one_at_a_time():
        out.mkdir(exist_ok=True)
        # Go compiles only changed packages, and -mod=readonly refuses modules missing in go.sum.
        _build(
            [go, "build", "-mod=readonly", "-p", "1", "-o", f"{out}/", "./franz", "./sarama"],
            HERE / "go",
        )
    return [str(out / program)]


def _node() -> list[str]:
    node, npm = _tools("node", "npm")
    out = BUILT / "node"
    with _one_at_a_time():
        out.mkdir(exist_ok=True)
        stale = not (out / "node_modules").exists() or (
            (out / "package-lock.json").read_bytes()
            != (HERE / "node/package-lock.json").read_bytes()
        )
        for file in (HERE / "node").iterdir():
            shutil.copy(file, out)
        if stale:
            _build([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], out)
    return [node, str(out / "kafkajs.js")]


def _rust() -> list[str]:
    # The crate compiles librdkafka from its bundled source, which needs the C tools.
    cargo, *_ = _tools("cargo", "cc", "c++", "make")
    out = BUILT / "rust"
    with _one_at_a_time():
        command = [cargo, "build", "--release", "--locked", "-j", "1"]
        _build(command, HERE / "rust", CARGO_TARGET_DIR=str(out))
    return [str(out / "release/clients")]


def java(main: str, *options: str) -> list[str]:
    """Compile ``tests/clients/java`` and return the command that runs the class ``main``."""
    command, javac = _tools("java", "javac")
    out = BUILT / "java"
    jars = HERE / "java/jars.txt"
    with _one_at_a_time():
        fetched_list = out / "jars.txt"
        if not fetched_list.exists() or fetched_list.read_bytes() != jars.read_bytes():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            _fetch_jars(command, jars, out)
            shutil.copy(jars, fetched_list)
        # Compiled each time: that takes a second or two.
        sources = sorted(each.name for each in (HERE / "java").glob("*.java"))
        _build([javac, "-cp", f"{out}/*", "-d", str(out), *sources], HERE / "java")
    # A small heap, and little compilation at the start.
    small = [
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Xmx128m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
    ]
    return [command, *small, *options, "-cp", f"{out}:{out}/*", main]


def kafka() -> Path:
    """Return the folder with the jars of Apache Kafka's broker and tools; fetch them if needed."""
    (command,) = _tools("java")
    out = BUILT / "kafka"
    listed = HERE / "java/kafka_jars.txt"
    with _one_at_a_time():
        fetched_list = out / "jars.txt"
        if not fetched_list.exists() or fetched_list.read_bytes() != listed.read_bytes():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            _fetch_jars(command, listed, out)
            shutil.copy(listed, fetched_list)
    return out


def _fetch_jars(command: str, listing: Path, out: Path) -> None:
    """Fetch the jars of ``listing`` into ``out`` with the Ivy that Spark includes.

    :raises ToolchainMissing: Spark is not installed.
    """
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ToolchainMissing("no Spark, whose Ivy fetches jars: make spark")
    (ivy,) = (Path(spark.origin).parent / "jars").glob("ivy-*.jar")
    jars = [line.split() for line in listing.read_text().splitlines()]
    # The list is complete, so that dependencies are not resolved.
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false"'
        ' conf="default->master"/>'
        for _, group, name, version in jars
    )
    listed = out / "ivy.xml"
    listed.write_text(
        '<ivy-module version="2.0"><info organisation="tests" module="clients"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    fetch = [command, "-jar", str(ivy), "-cache", str(BUILT / "ivy"), "-ivy", str(listed)]
    _build([*fetch, "-retrieve", f"{out}/[artifact]-[revision].[ext]"], HERE)
    for digest, _, name, version in jars:
        jar = out / f"{name}-{version}.jar"
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        assert found == digest, f"{jar} has the SHA-256 {found}, not that of {listing.name}"


CLIENTS: Final[Sequence[Client]] = (
    Client(
        name="kafka-clients",
        language="Java",
        registry="Maven Central",
        build=lambda: java("Client"),
    ),
    Client(
        name="kafka-clients-consumer",
        language="Java",
        registry="Maven Central",
        build=lambda: java("Client", "-Dgroup.protocol=consumer"),
    ),
    Client(
        name="confluent-kafka",
        language="Python",
        registry="PyPI",
        build=lambda: _python("confluent"),
    ),
    Client(
        name="confluent-kafka-consumer",
        language="Python",
        registry="PyPI",
        build=lambda: [*_python("confluent"), "--group-protocol=consumer"],
    ),
    Client(
        name="kafka-python",
        language="Python",
        registry="PyPI",
        build=lambda: _python("kafka_python"),
    ),
    Client(
        name="aiokafka",
        language="Python",
        registry="PyPI",
        build=lambda: _python("aio"),
        lacks={
            "delete_group": "no deletion of groups",
            "list_offsets": "no ListOffsets in its admin client",
        },
    ),
    Client(
        name="kcat",
        language="C",
        registry="Debian",
        build=_kcat,
        lacks={
            "admin": "no administration",
            "copy": "no transactions",
            COMMITS: "no explicit commits; when members join or leave, its automatic commits may "
            "cover a record that it has not printed",
        },
    ),
    Client(name="franz-go", language="Go", registry="Go modules", build=lambda: _go("franz")),
    Client(name="sarama", language="Go", registry="Go modules", build=lambda: _go("sarama")),
    Client(
        name="kafkajs",
        language="JavaScript",
        registry="npm",
        build=_node,
        lacks={
            "read": "only consumers in groups",
            "bursts": "no concurrent idempotent sends, since it loses some of them when a leader "
            "moves",
            STAYS: "a member rejoins its group when the coordinator moves, since it does not look "
            "for the new coordinator otherwise",
        },
    ),
    Client(
        name="rdkafka",
        language="Rust",
        registry="crates.io",
        build=_rust,
        lacks={"group_offsets": "no group offsets in its admin client"},
    ),
)


def _build_all() -> None:
    """Build all programs before parallel tests start, so that no test times out on a build."""
    for client in CLIENTS:
        try:
            client.build()
        except ToolchainMissing as e:
            print(f"clients: {client} is skipped: {e}", flush=True)
        else:
            print(f"clients: {client} is ready", flush=True)


if __name__ == "__main__":
    _build_all()
