"""What a handler may know of a request beside its body."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.broker.request_context import RequestContext
from tests.unit.broker.broker_rig import CONNECTION, LISTENER


def test_a_handler_cannot_change_what_it_is_given() -> None:
    context = RequestContext(connection=CONNECTION, api_version=1, client_id=None)
    assert context.listener_name == LISTENER
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.api_version = 2  # type: ignore[misc]  # that is the point
