"""Compile kraftjbod/protocol/byte_scans.py with mypyc, if this machine can.

usage: compile_scans.py [FOLDER]

The module is written to FOLDER, or beside its source. Its name contains the hash of the source, and
modules of other sources are removed. Without a C compiler or Python's headers no module is written,
and the source is interpreted (kraftjbod/protocol/record_scans.py chooses). mypy and setuptools are
required.

hatch-mypyc was rejected: it fails the build without a C compiler, and Python would import its
module before the source, even if the source is newer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "kraftjbod" / "protocol" / "byte_scans.py"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def obstacle() -> str | None:
    """What is missing to compile anything here; None if nothing is."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(command) is None:
        return f"no C compiler ({command})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no headers of Python (Debian: python3-dev)"
    return None


def compile_source(source: bytes, name: str, folder: Path) -> str | None:
    """Puts the module into ``folder``, whole or not at all; what went wrong, if something did."""
    with tempfile.TemporaryDirectory(prefix="kraftjbod-scans-") as place:
        Path(place, f"{name}.py").write_bytes(source)
        done = subprocess.run(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-m", "mypyc", f"{name}.py"],
            cwd=place,
            env={**os.environ, "MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        made = Path(place, f"{name}{SUFFIX}")
        if done.returncode != 0 or not made.exists():
            return (done.stdout + done.stderr)[-2000:]
        arriving = folder / f".{name}.{os.getpid()}"
        shutil.copyfile(made, arriving)
        arriving.replace(folder / made.name)
    return None


def main(folder: Path) -> None:
    source = SOURCE.read_bytes()
    name = f"_byte_scans_{hashlib.sha256(source).hexdigest()[:16]}"
    for other in folder.glob("_byte_scans_*"):
        if not other.name.startswith(name):
            other.unlink()
    if (folder / f"{name}{SUFFIX}").exists():
        return
    problem = obstacle() or compile_source(source, name, folder)
    if problem:
        print(f"byte scans: not compiled, they run interpreted: {problem}", file=sys.stderr)
    else:
        print(f"byte scans: compiled, {folder / name}{SUFFIX}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE.parent)
