"""Tests of ``make install`` and ``make uninstall`` with a directory as the root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.local.ports import reserve_port
from tests.checkout import ROOT
from tests.systemd import wheelhouse

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PREFIX: Final = "/opt/kraftjbod"
LAUNCHERS: Final = sorted(path.name for path in (ROOT / "bin").iterdir())
#: Files that ``make uninstall`` keeps.
CONFIGURATION: Final = {
    *(f"etc/kraftjbod/broker-{number}.properties" for number in (1, 2, 3)),
    *(f"etc/kraftjbod/controller-{number}.properties" for number in (100, 101, 102)),
    "etc/systemd/system/kraftjbod-broker@.service.d/disks.conf",
}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), *arguments],
        env={**os.environ, "PIP_FIND_LINKS": str(wheelhouse.wheels())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def say(*command: str | Path) -> str:
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout


def files(root: Path) -> set[str]:
    """Return the files below ``root`` except those of the Python environment."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    return {path for path in found if not path.startswith("opt/kraftjbod/lib/")}


def starts_and_stops_a_cluster(local: Path, data: Path) -> None:
    shape = ("--brokers", "1", "--dirs", "1", "--controllers", "1")
    words = (*shape, "--port", str(reserve_port().port), "--json")
    try:
        printed = json.loads(say(local, "up", *words, "--data", data))
        assert (printed["serves"], printed["started"]) == (True, ["controller", "broker-1"])
    finally:
        assert "Stopped controller, broker-1" in say(local, "down", "--data", data)
        shutil.rmtree(data)


def test_uninstall_after_install_keeps_only_configuration_and_foreign_files(
    tmp_path: Path,
) -> None:
    stranger = tmp_path / PREFIX[1:] / "bin" / "stranger"
    stranger.parent.mkdir(parents=True)
    stranger.touch()
    where = (f"DESTDIR={tmp_path}", f"PREFIX={PREFIX}")
    done = make("install", *where)
    assert (done.returncode, done.stderr) == (0, "")

    installed = tmp_path / PREFIX[1:]
    for launcher in LAUNCHERS:
        assert "Usage:" in say(installed / "bin" / launcher, "--help").replace("usage:", "Usage:")
    python = installed / "lib" / "kraftjbod" / "bin" / "python"
    package = say(python, "-c", "import kraftjbod; print(kraftjbod.__file__)")
    assert package.startswith(str(installed))
    assert list(Path(package).parents[1].glob("kraftjbod-*.dist-info/licenses/LICENSE"))
    starts_and_stops_a_cluster(installed / "bin" / "kraftjbod-local", tmp_path / "data")
    units = tmp_path / "etc" / "systemd" / "system"
    broker = (units / "kraftjbod-broker@.service").read_text()
    assert f"ExecStart={PREFIX}/bin/kraftjbod-broker /etc/kraftjbod/broker-%i.properties" in broker
    assert not [path for path in units.iterdir() if path.is_file() and "@P" in path.read_text()]

    edited = tmp_path / "etc" / "kraftjbod" / "broker-1.properties"
    edited.write_text("node.id=1\n")
    (units / "kraftjbod.target").write_text("of an older release\n")
    assert make("install", *where).returncode == 0
    assert edited.read_text() == "node.id=1\n"
    assert "older" not in (units / "kraftjbod.target").read_text()

    done = make("uninstall", *where)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == {*CONFIGURATION, "opt/kraftjbod/bin/stranger"}
    assert not (installed / "lib" / "kraftjbod").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs services")
def test_install_with_python_in_home_uses_system_python(tmp_path: Path) -> None:
    """``ProtectHome=yes`` hides /root and /home, where pyenv keeps its interpreters."""
    base = Path("/usr/bin/python3.11")
    hidden = Path("/root") / f"kraftjbod-test-{os.getpid()}" / "python3.11"
    hidden.parent.mkdir()
    try:
        shutil.copy(base, hidden)
        where = (f"DESTDIR={tmp_path}", f"PREFIX={PREFIX}", f"BASE_PYTHON={hidden}")
        done = make("install", *where)
        assert done.returncode == 0, done.stderr
        assert f"install: {hidden} is none for services ({hidden} is in a home" in done.stdout
        python = tmp_path / PREFIX[1:] / "lib" / "kraftjbod" / "bin" / "python"
        assert not str(python.resolve()).startswith("/root/")
        # An environment that an earlier installer created from this Python is recreated.
        python.unlink()
        python.symlink_to(hidden)
        assert make("install", *where).returncode == 0
        assert not str(python.resolve()).startswith("/root/")
    finally:
        shutil.rmtree(hidden.parent)


def test_uninstall_keeps_files_that_no_installation_created(tmp_path: Path) -> None:
    own = tmp_path / "opt" / "kraftjbod" / "lib" / "kraftjbod" / "notes"
    own.parent.mkdir(parents=True)
    own.touch()
    assert make("uninstall", f"DESTDIR={tmp_path}", f"PREFIX={PREFIX}").returncode == 0
    assert own.exists()


def test_install_with_relative_prefix_is_refused(tmp_path: Path) -> None:
    done = make("install", f"DESTDIR={tmp_path}", "PREFIX=here")
    assert done.returncode != 0
    assert "here: expected an absolute path" in done.stderr
    assert list(tmp_path.iterdir()) == []
