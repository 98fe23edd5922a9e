"""A fixture with partition leaders that answer transaction markers."""

from __future__ import annotations

import pytest

from tests.unit.broker.transactions.transaction_rig import Partitions


@pytest.fixture
def partitions() -> Partitions:
    return Partitions()
