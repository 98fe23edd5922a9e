"""The wheel and the tests on each supported version of CPython that this machine has.

``make test`` runs on one version. Here the wheel of ``make dist`` is installed into a fresh virtual
environment of each version; a cluster of it stores and returns records, and the unit tests that
depend most on the interpreter (event loops, sockets, protocol, quorum) run on it.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.checkout import ROOT

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
_FOLDERS: Final = ("core", "net", "raft", "metadata", "storage/log_dirs")
_LIMIT_S: Final = 1800

#: A user's first program, with a cluster of the installed package.
_PROGRAM: Final = """
import sys, uvloop
import kraftjbod
from confluent_kafka import Consumer, Producer
from kraftjbod.testing import LocalCluster

assert "site-packages" in kraftjbod.__file__, kraftjbod.__file__
with LocalCluster(brokers=1, dirs=2, disks="plain") as cluster:
    cluster.create_topic("versions", partitions=1, replication_factor=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(100):
        producer.produce("versions", str(number))
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "versions",
                         "auto.offset.reset": "earliest"})
    consumer.subscribe(["versions"])
    found = []
    while len(found) < 100:
        messages = consumer.consume(100, 30)
        assert messages, f"{len(found)} records after 30 s"
        found += [int(message.value()) for message in messages]
    consumer.close()
    assert found == list(range(100))
print("Python", sys.version.split()[0], "uvloop", uvloop.__version__)
"""


def _run(*command: str | Path, cwd: Path = ROOT) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.environ["PATH"].split(os.pathsep):
        yield Path(folder) / f"python{version}"
    # pyenv's commands on PATH start a version only where it is selected.
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))


def find_python(version: str) -> Path | None:
    """Return an interpreter of ``version`` that starts and can make virtual environments."""
    check = f"import sys, ensurepip; assert '%d.%d' % sys.version_info[:2] == '{version}'"
    for path in _candidates(version):
        if path.exists():
            tried = subprocess.run([path, "-c", check], capture_output=True, check=False)
            if tried.returncode == 0:
                return path
    return None


@functools.cache
def _wheel() -> Path:
    _run("make", "--no-print-directory", "dist")
    (wheel,) = (ROOT / "dist").glob("kraftjbod-*.whl")
    return wheel


@pytest.mark.timeout(2 * _LIMIT_S)
@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_on_each_python_version_runs_a_cluster_and_passes_unit_tests(
    version: str, tmp_path: Path
) -> None:
    if (interpreter := find_python(version)) is None:
        pytest.skip(f"there is no Python {version} here; tests of that version did not run")
    _run(interpreter, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "-q", "-r", ROOT / "requirements.lock", _wheel())
    program = tmp_path / "first_program.py"
    program.write_text(_PROGRAM)
    assert f"Python {version}." in _run(python, program, cwd=tmp_path)

    folders = [f"tests/unit/{folder}" for folder in _FOLDERS]
    _run(
        *(python, "-m", "pytest", "-q", "-n", "2", "-m", "not long", "-p", "no:cacheprovider"),
        *folders,
    )
