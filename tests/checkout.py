"""Where this checkout lies, and its launchers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BIN: Final = ROOT / "bin"
