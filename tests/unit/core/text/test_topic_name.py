"""``why_illegal`` and ``code_of_absence``: legal and illegal topic names."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.text.topic_name import code_of_absence, why_illegal


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__cluster_metadata"])
def test_why_illegal_of_legal_topic_name_is_none(name: str) -> None:
    assert why_illegal(name) is None
    assert code_of_absence(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a\n", "a/b"])
def test_why_illegal_of_illegal_topic_name_gives_reason(name: str) -> None:
    assert why_illegal(name)
    assert code_of_absence(name) is ErrorCode.INVALID_TOPIC_EXCEPTION
