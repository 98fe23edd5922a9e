"""The package as a zip: complete, importable, and without files that code does not read."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from kraftjbod.spark.session.shipped_package import package_zip
from tests.checkout import ROOT
from tests.spark.running import environment, run


def test_package_zip_holds_every_module_and_no_pages_bytecode_or_compiled_modules() -> None:
    path = package_zip()
    assert path is not None
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "kraftjbod").rglob("*.py")}
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())
    assert modules <= names
    assert [name for name in names if name.endswith((".md", ".pyc", ".so"))] == []


def test_package_zip_runs_byte_scans_from_source(tmp_path: Path) -> None:
    script = "from kraftjbod.protocol import record_scans as r; print(r.FORM, r.__file__)"
    path = package_zip()
    done = run(
        sys.executable, "-S", "-c", script, env=environment(PYTHONPATH=str(path)), cwd=tmp_path
    )
    assert done.stdout.split() == ["interpreted", f"{path}/kraftjbod/protocol/record_scans.py"]


def test_package_zip_ships_no_zip_again(tmp_path: Path) -> None:
    path = package_zip()
    script = (
        "import kraftjbod.spark.session.shipped_package as shipped;"
        "print(shipped.__file__, shipped.package_zip())"
    )
    command = (sys.executable, "-S", "-c", script)
    done = run(*command, env=environment(PYTHONPATH=str(path)), cwd=tmp_path)
    assert done.stdout.split() == [f"{path}/kraftjbod/spark/session/shipped_package.py", "None"]
