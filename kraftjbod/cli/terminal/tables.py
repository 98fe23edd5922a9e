"""PURE. Formats a table as Kafka's newer tools do: aligned columns, and a tab after each cell."""

from __future__ import annotations

from collections.abc import Sequence


def tabbed_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as text; without rows it has only ``heads``."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "".join(f"{cell:<{width}}\t" for cell, width in zip(line, widths, strict=True))
        for line in (heads, *rows)
    )
