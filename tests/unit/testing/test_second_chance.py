"""``second_chance``: repeated tests, in separate pytest runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

TESTS = """
import pytest
from pathlib import Path

def is_first(name):
    mark = Path(__file__).with_name(name)
    if mark.exists():
        return False
    mark.touch()
    return True

@pytest.mark.parametrize("number", range(%(flaky)d))
def test_disturbed(number):
    assert not is_first(f"disturbed-{number}")

def test_sound():
    pass

@pytest.mark.skipif(%(broken)d == 0, reason="all is well")
def test_broken():
    assert False

@pytest.mark.skipif(%(broken)d == 0, reason="all is well")
def test_skipped_alone():
    if not is_first("skipped"):
        pytest.skip("not now")
    assert False
"""


@pytest.mark.parametrize(
    ("limit", "flaky", "broken", "code", "summary"),
    [
        (3, 2, 0, 0, "1 passed, 2 skipped, 2 flaky"),
        (3, 4, 0, 1, "1 passed, 2 skipped, 4 flaky"),
        (3, 1, 1, 1, "2 failed, 1 passed, 1 flaky"),
        (0, 1, 0, 1, "1 passed, 2 skipped, 1 flaky"),
    ],
)
def test_flaky_tests_are_named_and_fail_the_run_above_the_limit(
    tmp_path: Path, limit: int, flaky: int, broken: int, code: int, summary: str
) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_some.py").write_text(TESTS % {"flaky": flaky, "broken": broken})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_chance", "-n", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "FLAKY_LIMIT": str(limit)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == code, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert last.startswith(summary)
    named = [line for line in lines if line.startswith("FLAKY ")]
    assert [line.partition(" - ")[0] for line in sorted(named)] == [
        f"FLAKY test_some.py::test_disturbed[{n}]" for n in range(flaky)
    ]
    assert all("assert not True" in line for line in named), named
    assert (f"more than {limit} flaky tests fail the run" in lines) == (flaky > limit)


HOLDER = """
import pathlib

class Client:
    def __del__(self):
        pathlib.Path("freed").touch()

def test_failing():
    client = Client()
    def method():
        return client
    assert method() is None

def test_after():
    assert pathlib.Path("freed").exists()
"""


def test_objects_of_failed_test_are_freed_before_next_test(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_some.py").write_text(HOLDER)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "1"),
            *("-p", "tests.second_chance", "-p", "no:randomly"),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed"), done.stdout
