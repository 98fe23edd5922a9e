"""Names that a topic may have, and what is answered for others."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.text.topic_name import code_of_absence, why_illegal


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__cluster_metadata"])
def test_legal_names(name: str) -> None:
    assert why_illegal(name) is None
    assert code_of_absence(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a\n", "a/b"])
def test_illegal_names(name: str) -> None:
    assert why_illegal(name)
    assert code_of_absence(name) is ErrorCode.INVALID_TOPIC_EXCEPTION
