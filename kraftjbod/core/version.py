"""WIRE. Which version of this software runs: what ``kraftjbod.__version__`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
#: Of a copy that was never installed, such as the one that Spark's workers get.
UNKNOWN: Final = "unknown"


def package_version() -> str:
    """That of the checkout this file lies in, or else of the installed package.

    A checkout goes first: what was installed from it may be older than it is.
    """
    import tomllib  # both take hundredths of a second, and are hardly ever needed
    from importlib.metadata import PackageNotFoundError, version

    if _PROJECT.is_file():
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "kraftjbod":
            return str(project["version"])
    try:
        return version("kraftjbod")
    except PackageNotFoundError:
        return UNKNOWN
