"""The clients that are tried, each a small program around its language's ordinary client.

A program is called with the bootstrap address, a verb and its arguments, and prints JSON lines,
each an object with one key. The first is ``version``, the client's. It ends with 0 if all went
well. The verbs, and what they print:

* ``produce TOPIC FIRST COUNT PAUSE_MS``: sends the numbers from FIRST on, as key and value, acks
  all, up to 20 at a time with a pause between. ``sent: [partition, offset, number]`` as soon as one
  is acknowledged; -1 where the client does not say.
* ``idempotent``: the same with an idempotent producer.
* ``read TOPIC COUNT``: assigned to all partitions, from their beginning, until COUNT records.
  ``read: [partition, offset, number]`` of each.
* ``group TOPIC GROUP``: subscribed; commits what it has printed, and leaves when its standard
  input ends. ``owns: [partition, ...]`` at each change, ``read`` as above, ``uncommitted: why``
  if a commit was refused, ``left`` at last.
* ``copy FROM TO ID COUNT``: copies numbers in transactions, as a group that commits with them, and
  aborts a third of them, whose numbers come once more. ``committed: n`` or ``aborted: n`` of each
  transaction.
* ``committed TOPIC COUNT``, ``fence TOPIC ID`` (Java): as ``read``, of what transactions committed;
  has one producer fence another, ``fenced`` and ``ended`` whether the first could go on.
* ``admin TOPIC GROUP``: makes, changes and deletes the topic, asks for and deletes the group.
  A line for each deed says what was found after it: :data:`ADMIN`.

Clients come from their registries by their languages' tools, in versions that are pinned here:
``requirements.lock``, ``go.sum``, ``package-lock.json``, ``Cargo.lock``, and ``java/jars.txt``
and ``java/kafka_jars.txt`` with the digests of what Maven has. What is built lies in
``.cache/clients`` and is built once.
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

#: In ``lacks``: a member keeps its place in its group when its coordinator moves.
STAYS: Final = "stays"
#: In ``lacks``: it commits what it has printed and nothing else.
COMMITS: Final = "commits"
#: What every client with an admin finds: of a topic with 3 partitions, then 4, and a group that
#: has read 100 records and left.
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
    """What a client's language needs is not on this machine; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client. ``build`` makes its program ready and returns the command that starts it."""

    name: str
    language: str
    registry: str
    build: Callable[[], list[str]]
    #: Verbs, and deeds of ``admin``, that the client itself does not have, with words for it.
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def _tools(*names: str) -> list[str]:
    """:raises ToolchainMissing: naming the first that is not there."""
    paths = [shutil.which(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise ToolchainMissing(f"no {name} on this machine")
    return [path for path in paths if path is not None]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Test processes beside each other build once, and one after the other."""
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
        # It compiles only what has changed, and takes no module that go.sum does not know.
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
    # librdkafka is compiled too, from the source that the crate brings.
    cargo, *_ = _tools("cargo", "cc", "c++", "make")
    out = BUILT / "rust"
    with _one_at_a_time():
        command = [cargo, "build", "--release", "--locked", "-j", "1"]
        _build(command, HERE / "rust", CARGO_TARGET_DIR=str(out))
    return [str(out / "release/clients")]


def java(main: str, *options: str) -> list[str]:
    """The command that starts a class of ``tests/clients/java``, or of a jar that is there."""
    command, javac = _tools("java", "javac")
    out = BUILT / "java"
    jars = HERE / "java/jars.txt"
    with _one_at_a_time():
        made_of = out / "jars.txt"
        if not made_of.exists() or made_of.read_bytes() != jars.read_bytes():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            _fetch_jars(command, jars, out)
            shutil.copy(jars, made_of)
        # The compiler needs a second or two.
        sources = sorted(each.name for each in (HERE / "java").glob("*.java"))
        _build([javac, "-cp", f"{out}/*", "-d", str(out), *sources], HERE / "java")
    # The options of a tool: a small heap, a start that compiles little.
    small = [
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Xmx128m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
    ]
    return [command, *small, *options, "-cp", f"{out}:{out}/*", main]


def kafka() -> Path:
    """A folder with the jars of Apache Kafka's broker and tools."""
    (command,) = _tools("java")
    out = BUILT / "kafka"
    listed = HERE / "java/kafka_jars.txt"
    with _one_at_a_time():
        made_of = out / "jars.txt"
        if not made_of.exists() or made_of.read_bytes() != listed.read_bytes():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            _fetch_jars(command, listed, out)
            shutil.copy(listed, made_of)
    return out


def _fetch_jars(command: str, listing: Path, out: Path) -> None:
    """Those of a list, by Ivy, which Spark brings along and fetches its own packages with."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ToolchainMissing("no Spark, whose Ivy fetches jars: make spark")
    (ivy,) = (Path(spark.origin).parent / "jars").glob("ivy-*.jar")
    jars = [line.split() for line in listing.read_text().splitlines()]
    # Of each that one jar, and nothing that it asks for: the list is whole.
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
            "list_offsets": "no offsets by its admin",
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
            COMMITS: "no commits but those that it makes by itself, now and then of a record that "
            "it has not printed, where members come and go",
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
            "read": "consumers in groups only",
            "bursts": "several idempotent sends at once, of which it loses some where a leader "
            "moves; it is tried with one after the other",
            STAYS: "a member whose coordinator moves joins anew, since it looks for another one in "
            "no other way",
        },
    ),
    Client(
        name="rdkafka",
        language="Rust",
        registry="crates.io",
        build=_rust,
        lacks={"group_offsets": "no offsets of groups by its admin"},
    ),
)


def _build_all() -> None:
    """Before tests run beside each other: what needs long shall not look like a test that hangs."""
    for client in CLIENTS:
        try:
            client.build()
        except ToolchainMissing as e:
            print(f"clients: {client} is skipped: {e}", flush=True)
        else:
            print(f"clients: {client} is ready", flush=True)


if __name__ == "__main__":
    _build_all()
