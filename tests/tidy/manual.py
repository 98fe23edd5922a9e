"""``make docs``: the pages of the manual that are written from the code.

``python -m tests.tidy.manual`` writes them; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.checkout import ROOT
from tests.tidy import config_page, events_page, metrics_page, protocol_page, states_page

PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    ROOT / "docs/configuration.md": config_page.page,
    ROOT / "docs/metrics.md": metrics_page.page,
    ROOT / "docs/events.md": events_page.page,
    ROOT / "docs/protocol.md": protocol_page.page,
    ROOT / "docs/states.md": states_page.page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page())
