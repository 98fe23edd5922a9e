"""``kraftjbod.__version__`` of a checkout, of an installed package, and of a copy of the
sources."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest

import kraftjbod
from kraftjbod.core import version
from tests.checkout import ROOT
from tests.tidy.sources import PACKAGE


def test_version_in_checkout_is_that_of_the_project_file() -> None:
    assert f'\nversion = "{kraftjbod.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_version_without_checkout_is_that_of_the_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = installed_version("kraftjbod")
    for project in (tmp_path / "nowhere", tmp_path / "other.toml"):
        monkeypatch.setattr(version, "PROJECT", project)
        assert version.package_version() == installed
        project.write_text('[project]\nname = "other"\nversion = "99"\n')


def test_version_of_uninstalled_copy_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    for path in ("__init__.py", "core/__init__.py", "core/version.py"):
        target = tmp_path / "copy" / "kraftjbod" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((PACKAGE / path).read_bytes())
    asked = "import kraftjbod; print(kraftjbod.__version__)"
    command = (sys.executable, "-I", "-S", "-c", f"import sys; sys.path[0:0] = ['.']; {asked}")
    done = subprocess.run(command, cwd=tmp_path / "copy", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("unknown\n", "")
