"""WIRE. The version of this software, which ``kraftjbod.__version__`` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
#: Version of a copy that was never installed, such as the copy that Spark's workers get.
UNKNOWN: Final = "unknown"


def package_version() -> str:
    """Return the version of the checkout that contains this file, or else of the installed package.

    The checkout has precedence, because an installation from it may be older. The result is
    ``unknown`` without either.
    """
    import tomllib  # imported on use: both imports are slow and rarely needed
    from importlib.metadata import PackageNotFoundError, version

    if PROJECT.is_file():
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "kraftjbod":
            return str(project["version"])
    try:
        return version("kraftjbod")
    except PackageNotFoundError:
        return UNKNOWN
