"""Generated messages are values with Kafka's defaults."""

from __future__ import annotations

import pytest

from kraftjbod.protocol.messages import FetchRequest

FetchTopic = FetchRequest.FetchTopic


def test_messages_compare_by_value_and_have_defaults() -> None:
    one, other = FetchRequest(max_wait_ms=5), FetchRequest(max_wait_ms=5)
    assert one == other
    assert one != FetchRequest()
    assert one != FetchTopic()
    assert (one.topics, one.replica_id, one.replica_state) == ([], -1, None)
    one.topics.append(FetchTopic(topic="t"))
    assert other.topics == []
    assert "max_wait_ms=5" in repr(one)
    for _ in range(2):  #  The first call of a class generates its constructor.
        with pytest.raises(TypeError):
            FetchRequest.ForgottenTopic(no_such_field=1)
    with pytest.raises(AttributeError):
        one.no_such_field = 1


def test_inner_structs_at_any_depth_are_attributes_of_the_message_itself() -> None:
    assert repr(FetchTopic) == "<class 'kraftjbod.protocol.messages.FetchRequest.FetchTopic'>"
    assert not hasattr(FetchTopic, "FetchPartition")
