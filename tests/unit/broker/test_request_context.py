"""What a handler may know of a request besides its body."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.broker.request_context import RequestContext


def test_it_tells_of_one_request_and_stays_as_it_is() -> None:
    context = RequestContext(listener_name="PLAINTEXT", api_version=9, client_id=None)
    assert context == RequestContext(listener_name="PLAINTEXT", api_version=9, client_id=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.api_version = 10  # type: ignore[misc]  # That is what is tested.
