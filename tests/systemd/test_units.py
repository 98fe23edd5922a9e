"""Tests of the unit files with systemd-analyze and against the daemons' exit codes and defaults."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.daemon import runner
from tests.checkout import ROOT

UNITS: Final = ROOT / "conf" / "systemd"
SERVICES: Final = ("kraftjbod-broker@", "kraftjbod-controller@")
MAX_EXPOSURE: Final = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units as ``make install`` writes them, with the checkout as prefix."""
    for source in (*UNITS.glob("*.service"), *UNITS.glob("*.target")):
        text = source.read_text().replace("@PREFIX@", str(ROOT)).replace("@SYSCONFDIR@", "/etc")
        (tmp_path / source.name).write_text(text)
    return tmp_path


def analyze(units: Path, *command: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["systemd-analyze", *command],
        cwd=units,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@needs_systemd
@pytest.mark.parametrize(
    "unit",
    [*(f"{service}1.service" for service in SERVICES), *(p.name for p in UNITS.glob("*.target"))],
)
def test_unit_files_pass_systemd_analyze_verify(units: Path, unit: str) -> None:
    """systemd-analyze only warns of unknown keys, so that its output must be empty."""
    assert analyze(units, "verify", "--man=no", f"./{unit}") == (0, "", "")


@needs_systemd
@pytest.mark.parametrize("service", SERVICES)
def test_units_have_low_exposure_score(units: Path, service: str) -> None:
    code, out, err = analyze(units, "security", "--offline=true", f"./{service}.service")
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", out)
    print(f"{service}: exposure {score}")
    assert (code, err) == (0, "")
    assert float(score) <= MAX_EXPOSURE


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_broker_and_controller_units_have_equal_settings() -> None:
    """Only description, order, command and identifier differ."""
    broker, controller = (settings(f"{service}.service") for service in SERVICES)
    own = {key for key in broker | controller if broker.get(key) != controller.get(key)}
    assert own == {*("Description", "After", "Before", "ExecStart", "SyslogIdentifier", "WantedBy")}


@pytest.mark.parametrize("service", SERVICES)
def test_unit_does_not_restart_after_permanent_exit_codes(service: str) -> None:
    """runner.py has the table of exit codes. Code 2, a wrong command line, is Python's."""
    rows = re.findall(r"^(\d+) +(yes|no|-) +\S", runner.__doc__ or "", re.MULTILINE)
    named = {name: code for name, code in vars(runner).items() if name.startswith("EXIT_")}
    assert {int(code) for code, _ in rows} == {*named.values(), 2}
    final = {code for code, again in rows if again == "no"}
    (prevented,) = settings(f"{service}.service")["RestartPreventExitStatus"]
    assert set(prevented.split()) == final


@pytest.mark.parametrize("service", SERVICES)
def test_unit_of_broker_without_controller_restarts_without_limit(service: str) -> None:
    """Five registration timeouts take longer than StartLimitIntervalSec."""
    found = settings(f"{service}.service")
    wait_ms = BrokerConfig.model_fields["initial_broker_registration_timeout_ms"].default
    burst = int(found["StartLimitBurst"][0])
    assert found["StartLimitIntervalSec"] == ["3min"]
    assert wait_ms * burst > 3 * 60_000


@pytest.mark.parametrize("service", SERVICES)
def test_unit_stop_timeout_exceeds_shutdown_timeout(service: str) -> None:
    stop_ms = BrokerConfig.model_fields["shutdown_timeout_ms"].default
    assert settings(f"{service}.service")["TimeoutStopSec"] == ["5min"]
    assert stop_ms < 5 * 60_000


def test_unit_ignores_missing_paths_of_disks() -> None:
    """Without the dash, a missing path would prevent the start of the service."""
    (paths,) = settings("disks.conf")["ReadWritePaths"]
    assert paths
    assert all(path.startswith("-/") for path in paths.split())
