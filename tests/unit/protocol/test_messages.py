"""Lookup of messages by name."""

from __future__ import annotations

import pytest

from kraftjbod.protocol import messages


@pytest.mark.parametrize("name", ["NoSuchRequest", "fetch", "__path__"])
def test_messages_module_rejects_unknown_names(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(messages, name)
