"""The packages as ARCHITECTURE.md describes them, and as the source has them (ADR 2)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property

from tests.checkout import ROOT

PACKAGE = ROOT / "kraftjbod"
MAP = PACKAGE / "ARCHITECTURE.md"

_ROOM_ROW = re.compile(r"^\| `(?P<room>[a-z.]+)` \| (?P<sees>[^|]*) \|")
_DOOR_ROW = re.compile(r"^\| ([a-z_0-9]+) \| (?P<doors>`[^|]*) \|$")
_COLOUR = re.compile(r"(PURE|DISK|LOOP|WIRE|FRAME)\. ")


@dataclass(frozen=True)
class Drawing:
    """ARCHITECTURE.md: rooms with what they may see, and the doors of foreign packages."""

    sees: dict[str, frozenset[str]]
    doors: dict[str, frozenset[str]]


@cache
def read_drawing() -> Drawing:
    """The two tables of the map that people write."""
    sees: dict[str, frozenset[str]] = {}
    doors: dict[str, frozenset[str]] = {}
    for line in MAP.read_text().splitlines():
        if room := _ROOM_ROW.match(line):
            sees[room["room"]] = frozenset(re.findall(r"[a-z.]+", room["sees"]))
        elif door := _DOOR_ROW.match(line):
            doors[door[1]] = frozenset(re.findall(r"`([^`]+)`", door["doors"]))
    return Drawing(sees, doors)


@dataclass(frozen=True)
class SourceFile:
    """One product file as it stands; ``path`` is relative to the package."""

    path: str

    @cached_property
    def text(self) -> str:
        return (PACKAGE / self.path).read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The first folder, or a folder within that has a row of its own on the map."""
        within = self.folder.replace("/", ".")
        while within and within not in read_drawing().sees:
            within = within.rpartition(".")[0]
        return within or self.path.split("/")[0]

    @property
    def folder(self) -> str:
        """The room, or the room within it, that the file lies in."""
        return self.path.rpartition("/")[0]

    @cached_property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def colour(self) -> str:
        """The first word of the docstring; "" if it is none of the colours."""
        found = _COLOUR.match(self.docstring)
        return found[1] if found else ""

    @property
    def purpose(self) -> str:
        """The first paragraph of the docstring, without the colour, on one line."""
        first = " ".join(self.docstring.partition("\n\n")[0].split())
        return _COLOUR.sub("", first, count=1)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Dotted names that the file imports, ours and others', including late imports."""
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
        """Files of ours that the file imports."""
        found = set()
        for name in self.imports:
            if name.startswith("kraftjbod."):
                path = name.removeprefix("kraftjbod.").replace(".", "/") + ".py"
                if (PACKAGE / path).is_file():
                    found.add(path)
        return frozenset(found)

    @cached_property
    def top_modules(self) -> frozenset[str]:
        """Top-level names of foreign modules that the file imports."""
        return frozenset(name.split(".")[0] for name in self.imports) - {"kraftjbod"}


def read_sources() -> dict[str, SourceFile]:
    """Every product file but the rooms' signs (``__init__.py``), by path."""
    paths = (path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py")))
    return {path: SourceFile(path) for path in paths if not path.endswith("__init__.py")}
