"""``size_text``."""

from __future__ import annotations

import pytest

from kraftjbod.core.text.size_text import size_text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_size_text_uses_binary_units(size: int, text: str) -> None:
    assert size_text(size) == text
