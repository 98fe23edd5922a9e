"""Parses ARCHITECTURE.md and the source files for the tests of layers and imports (ADR 2)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property

from tests.checkout import ROOT

PACKAGE = ROOT / "kraftjbod"
MAP = PACKAGE / "ARCHITECTURE.md"

_PACKAGE_ROW = re.compile(r"^\| `(?P<package>[a-z.]+)` \| (?P<sees>[^|]*) \|")
_IMPORTER_ROW = re.compile(r"^\| ([a-z_0-9]+) \| (?P<importers>`[^|]*) \|$")
_LAYER = re.compile(r"(PURE|DISK|LOOP|WIRE|FRAME)\. ")


@dataclass(frozen=True)
class Architecture:
    """The two tables of ARCHITECTURE.md.

    ``sees``: the packages that a package may import. ``importers``: the files and folders that may
    import a third-party package.
    """

    sees: dict[str, frozenset[str]]
    importers: dict[str, frozenset[str]]


@cache
def read_architecture() -> Architecture:
    """Parse the tables of ARCHITECTURE.md."""
    sees: dict[str, frozenset[str]] = {}
    importers: dict[str, frozenset[str]] = {}
    for line in MAP.read_text().splitlines():
        if package := _PACKAGE_ROW.match(line):
            sees[package["package"]] = frozenset(re.findall(r"[a-z.]+", package["sees"]))
        elif importer := _IMPORTER_ROW.match(line):
            importers[importer[1]] = frozenset(re.findall(r"`([^`]+)`", importer["importers"]))
    return Architecture(sees, importers)


@dataclass(frozen=True)
class SourceFile:
    """A product file. ``path`` is relative to the folder ``kraftjbod``."""

    path: str

    @cached_property
    def text(self) -> str:
        return (PACKAGE / self.path).read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """The innermost folder with a row in ARCHITECTURE.md, else the first folder; dotted."""
        within = self.folder.replace("/", ".")
        while within and within not in read_architecture().sees:
            within = within.rpartition(".")[0]
        return within or self.path.split("/")[0]

    @property
    def folder(self) -> str:
        """The folder that contains the file."""
        return self.path.rpartition("/")[0]

    @cached_property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def layer(self) -> str:
        """The first word of the docstring if it is a layer, else ""."""
        found = _LAYER.match(self.docstring)
        return found[1] if found else ""

    @property
    def purpose(self) -> str:
        """The first paragraph of the docstring without the layer, on one line."""
        first = " ".join(self.docstring.partition("\n\n")[0].split())
        return _LAYER.sub("", first, count=1)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names of all modules and names that the file imports, also within functions."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(names)

    @cached_property
    def imported_files(self) -> frozenset[str]:
        """Paths of the product files that the file imports."""
        found = set()
        for name in self.imports:
            if name.startswith("kraftjbod."):
                path = name.removeprefix("kraftjbod.").replace(".", "/") + ".py"
                if (PACKAGE / path).is_file():
                    found.add(path)
        return frozenset(found)

    @cached_property
    def top_modules(self) -> frozenset[str]:
        """Top-level names of other modules that the file imports, standard library included."""
        return frozenset(name.split(".")[0] for name in self.imports) - {"kraftjbod"}


def read_sources() -> dict[str, SourceFile]:
    """Return the product files except ``__init__.py``, by path."""
    paths = (path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py")))
    return {path: SourceFile(path) for path in paths if not path.endswith("__init__.py")}
