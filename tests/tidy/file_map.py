"""Generates kraftjbod/FILES.md: each file of the package with its layer and purpose (``make map``).

``python -m tests.tidy.file_map`` writes the page from the docstrings. test_tidy.py compares them.
"""

from __future__ import annotations

import ast
from itertools import groupby
from typing import Final

from tests.tidy.sources import PACKAGE, read_sources

PAGE: Final = PACKAGE / "FILES.md"

_HEAD: Final = """# Files

`make map` writes this page from the docstrings of folders and files.
[ARCHITECTURE.md](ARCHITECTURE.md) explains the layers.
"""


def page() -> str:
    """Return FILES.md: a table per folder."""
    sources = sorted(read_sources().values(), key=lambda source: (source.folder, source.path))
    lines = [_HEAD]
    for folder, files in groupby(sources, key=lambda source: source.folder):
        init = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text())) or ""
        purpose = " ".join(init.partition("\n\n")[0].split())
        lines += [
            f"## {folder}/",
            "",
            purpose,
            "",
            "| file | layer | purpose |",
            "|---|---|---|",
        ]
        for source in files:
            name = source.path.removeprefix(f"{folder}/")
            lines.append(f"| [{name}]({source.path}) | {source.layer} | {source.purpose} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
