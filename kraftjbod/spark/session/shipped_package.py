"""WIRE. This package as one file, for executors that do not have it.

They need what the package imports (its dependencies with the extra ``spark``), and not the package:
it is the driver's, so that driver and executors never disagree about its version.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import kraftjbod
from kraftjbod.core.errors import StartupError

#: The map, the decisions: nothing that code reads. And what cannot be loaded from a zip: there the
#: source of the byte scans runs.
_NOT_SHIPPED = frozenset({".md", ".pyc", ".so"})


def package_zip() -> str | None:
    """A zip of the package, kept until this process ends.

    ``None`` if the package is in a zip already: then Spark was given it and gives it on.

    :raises StartupError: if there is no space for it.
    """
    package = Path(kraftjbod.__path__[0])
    if not package.is_dir():
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="kraftjbod-package-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "kraftjbod.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for parent, folders, names in os.walk(package):
                folders.sort()
                for name in sorted(names):
                    if Path(name).suffix not in _NOT_SHIPPED:
                        source = Path(parent, name)
                        file.write(source, Path("kraftjbod", source.relative_to(package)))
    except OSError as e:
        raise StartupError(f"cannot pack the package for the executors: {e}") from e
    return str(path)
