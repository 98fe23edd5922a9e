"""Generates the manual's pages that come from the code (``make docs``).

``python -m tests.tidy.manual`` writes the pages. test_manual.py compares them with the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.checkout import ROOT
from tests.tidy import (
    config_page,
    events_page,
    faults_page,
    metrics_page,
    protocol_page,
    rights_page,
    states_page,
)

PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    ROOT / "docs/configuration.md": config_page.page,
    ROOT / "docs/metrics.md": metrics_page.page,
    ROOT / "docs/events.md": events_page.page,
    ROOT / "docs/faults.md": faults_page.page,
    ROOT / "docs/protocol.md": protocol_page.page,
    ROOT / "docs/security.md": rights_page.page,
    ROOT / "docs/states.md": states_page.page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
