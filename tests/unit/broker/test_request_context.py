"""``RequestContext`` describes a request to its handler."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.broker.request_context import RequestContext
from tests.unit.broker.broker_rig import CONNECTION, LISTENER


def test_request_context_cannot_be_modified_by_a_handler() -> None:
    context = RequestContext(connection=CONNECTION, api_version=1, client_id=None)
    assert context.listener_name == LISTENER
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.api_version = 2  # type: ignore[misc]  # the assignment is under test
