"""Everything about sockets runs under both loops: uvloop in daemons, the stdlib's in simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"stdlib": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
