"""Downloads the packages that ``make install`` needs, for machines without a network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.checkout import ROOT

CACHE: Final = ROOT / ".cache" / "wheels"
#: Version of Debian's Python.
_PYTHON: Final = "3.11"
_TIMEOUT_S: Final = 300


def wheels() -> Path:
    """Return the folder of packages, downloaded once for each state of the lock file."""
    key = hashlib.sha256()
    for name in ("requirements.lock", "pyproject.toml"):
        key.update((ROOT / name).read_bytes())
    house = CACHE / key.hexdigest()[:12]
    if not house.exists():
        part = house.with_suffix(f".part-{os.getpid()}")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
                *("--only-binary=:all:", f"--python-version={_PYTHON}", f"--dest={part}"),
                *("--constraint", str(ROOT / "requirements.lock"), str(ROOT)),
                *("hatchling", "mypy", "setuptools"),  # What builds the wheel.
            ],
            check=True,
            timeout=_TIMEOUT_S,
        )
        part.rename(house)
    return house
