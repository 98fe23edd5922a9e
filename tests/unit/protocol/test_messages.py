"""Messages by name."""

from __future__ import annotations

import pytest

from kraftjbod.protocol import messages


@pytest.mark.parametrize("name", ["NoSuchRequest", "fetch", "__path__"])
def test_what_is_no_message_is_no_attribute(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(messages, name)
