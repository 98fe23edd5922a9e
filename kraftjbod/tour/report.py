"""WIRE. The lines that the tour prints, and its JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console


class Reporter:
    """Prints the progress of the tour to a terminal or a pipe."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def step(self, text: str) -> None:
        self.console.print(f"[bold]•[/bold] {text}", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False, soft_wrap=True)

    def trouble(self, text: str) -> None:
        self.console.print(f"[bold red]{text}[/bold red]", highlight=False, soft_wrap=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    fresh = path.with_suffix(".json.tmp")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)
