"""The order of files, for runs in several processes; and plain tracebacks in what code tells."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

#: Folders whose files take long come first, so that no process is left alone with them at the end.
_LONG_FIRST = {"spark": 0, "compose": 0, "systemd": 1, "integration": 2, "disk": 3, "faults": 4}


def pytest_configure() -> None:
    """Structlog's own way draws all local variables, on the loop: seconds on a busy machine."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Within a folder the order stays as it is."""
    here = Path(__file__).parent
    items.sort(key=lambda item: _LONG_FIRST.get(item.path.relative_to(here).parts[0], 5))
