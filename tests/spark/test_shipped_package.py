"""The package as a zip: whole, importable, and without what code does not read."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from kraftjbod.spark.shipped_package import package_zip
from tests.spark.running import ROOT, environment, run


def test_the_zip_holds_every_module_and_nothing_for_readers() -> None:
    path = package_zip()
    assert path is not None
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "kraftjbod").rglob("*.py")}
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())
    assert modules <= names
    assert [name for name in names if name.endswith((".md", ".pyc"))] == []


def test_from_the_zip_nothing_is_shipped_again(tmp_path: Path) -> None:
    path = package_zip()
    script = (
        "import kraftjbod.spark.shipped_package as shipped;"
        "print(shipped.__file__, shipped.package_zip())"
    )
    command = (sys.executable, "-S", "-c", script)
    done = run(*command, env=environment(PYTHONPATH=str(path)), cwd=tmp_path)
    assert done.stdout.split() == [f"{path}/kraftjbod/spark/shipped_package.py", "None"]
