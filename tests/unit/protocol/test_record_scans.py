"""``record_scans`` never runs a form that was compiled from another source."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kraftjbod.protocol import byte_scans, record_scans
from tests.checkout import ROOT

COMPILE = ROOT / "conf" / "compile_scans.py"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def form_in(tree: Path) -> str:
    """Return the form that runs for imports from ``tree``."""
    ask = "from kraftjbod.protocol import record_scans as r; print(r.FORM, r.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tree, check=True, capture_output=True, text=True
    )
    form, path = done.stdout.split()
    assert Path(path).is_relative_to(tree)
    return form


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the few files that the scans need."""
    for path in (
        "kraftjbod/__init__.py",
        "kraftjbod/core/__init__.py",
        "kraftjbod/core/errors.py",
        "kraftjbod/protocol/__init__.py",
        "kraftjbod/protocol/byte_scans.py",
        "kraftjbod/protocol/record_scans.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    return tmp_path


def compiled_file() -> Path:
    compiled = record_scans.compiled_form()
    if compiled is None:
        pytest.skip("the byte scans are not compiled here: no C compiler, or no headers of Python")
    assert compiled.__file__ is not None
    return Path(compiled.__file__)


def test_record_scans_without_compiled_form_are_interpreted(tree: Path) -> None:
    assert form_in(tree) == "interpreted"


def test_form_compiled_from_another_source_is_ignored(tree: Path) -> None:
    built = compiled_file()
    (tree / "kraftjbod" / "protocol" / built.name).write_bytes(built.read_bytes())
    assert form_in(tree) == "compiled"
    source = tree / "kraftjbod" / "protocol" / "byte_scans.py"
    source.write_text(source.read_text() + "\n# changed\n")
    assert form_in(tree) == "interpreted"


def test_compiled_form_that_does_not_load_is_ignored(tree: Path) -> None:
    source = (tree / "kraftjbod" / "protocol" / "byte_scans.py").read_bytes()
    name = record_scans.compiled_name(source) + SUFFIX
    (tree / "kraftjbod" / "protocol" / name).write_bytes(b"of another machine")
    assert form_in(tree) == "interpreted"


def test_compile_scans_without_compiler_reports_it_and_removes_old_forms(tmp_path: Path) -> None:
    left = tmp_path / f"_byte_scans_0123456789abcdef{SUFFIX}"
    left.write_bytes(b"of an older source")
    done = subprocess.run(
        [sys.executable, str(COMPILE), str(tmp_path)],
        env={"CC": "no-such-compiler", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "interpreted: no C compiler (no-such-compiler)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_record_scans_form_names_the_implementation_in_use() -> None:
    runs = record_scans.check_records
    is_source = runs is byte_scans.check_records
    assert is_source == (record_scans.FORM == "interpreted")
