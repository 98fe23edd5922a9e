"""The house as it is drawn (ARCHITECTURE.md) and as it stands (the source), side by side."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kraftjbod"
MAP = PACKAGE / "ARCHITECTURE.md"

_ROOM_ROW = re.compile(r"^\| `(?P<room>[a-z]+)` \| (?P<sees>[^|]*) \|")
_FILE_ROW = re.compile(r"^\| `(?P<path>[a-z_]+/[a-z_0-9]+\.py)` \| (?P<colour>[A-Z]+) \|")
_DOOR_ROW = re.compile(r"^\| ([a-z_0-9]+) \| (?P<doors>`[^|]*) \|$")


@dataclass(frozen=True)
class DrawnFile:
    """One row of the map."""

    path: str
    colour: str


@dataclass(frozen=True)
class Drawing:
    """ARCHITECTURE.md: rooms with what they may see, files in import order, doors."""

    sees: dict[str, frozenset[str]]
    files: tuple[DrawnFile, ...]
    doors: dict[str, frozenset[str]]


def read_drawing() -> Drawing:
    """The map's three tables."""
    sees: dict[str, frozenset[str]] = {}
    files: list[DrawnFile] = []
    doors: dict[str, frozenset[str]] = {}
    for line in MAP.read_text().splitlines():
        if room := _ROOM_ROW.match(line):
            sees[room["room"]] = frozenset(re.findall(r"[a-z]+", room["sees"]))
        elif file := _FILE_ROW.match(line):
            files.append(DrawnFile(file["path"], file["colour"]))
        elif door := _DOOR_ROW.match(line):
            doors[door[1]] = frozenset(re.findall(r"`([^`]+)`", door["doors"]))
    return Drawing(sees, tuple(files), doors)


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
        return self.path.split("/")[0]

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
