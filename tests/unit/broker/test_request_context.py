"""What a handler may know of a request beside its body."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.broker.request_context import RequestContext


def test_a_handler_cannot_change_what_it_is_told():
    context = RequestContext(listener_name="PLAINTEXT", api_version=1, client_id=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.api_version = 2  # type: ignore[misc]  # that is the point
