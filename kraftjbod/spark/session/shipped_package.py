"""WIRE. Packs this package into one file, for executors that do not have it.

Executors need the dependencies of the package (with the extra ``spark``), but not the package
itself: they get the driver's, so that both always have the same version.
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

#: Files that no code reads, and modules that cannot be loaded from a zip, such as the compiled byte
#: scans, whose source runs instead.
_NOT_SHIPPED = frozenset({".md", ".pyc", ".so"})


def package_zip() -> str | None:
    """Create a zip of the package, which is deleted when this process ends; return its path.

    None means that the package is already in a zip, which Spark then distributes.

    :raises StartupError: the zip cannot be written.
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
