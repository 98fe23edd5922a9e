"""``ConsumerProtocol`` subscriptions and assignments of classic members."""

from __future__ import annotations

import pytest

from kraftjbod.broker.groups.consumer.consumer_protocol import (
    assignment_bytes,
    read_assignment,
    read_subscription,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from tests.unit.broker.groups.consumer.classic_scene import subscription

TP = TopicPartition("t", 1)


def test_read_subscription_and_assignment_support_all_versions() -> None:
    for version in range(4):
        read = read_subscription(subscription("t", owned=[("t", [1])], version=version))
        assert (read.version, read.topics) == (version, {"t"})
        assert read.owned == (frozenset({TP}) if version else frozenset())
        assert read_assignment(assignment_bytes(version, [TP])) == {TP}
    assert read_assignment(b"") == frozenset()


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0\0\x09x", b"\0\1" + b"\xff" * 9])
def test_read_subscription_of_malformed_data_raises_inconsistent_group_protocol(
    data: bytes,
) -> None:
    with pytest.raises(OperatingError) as refused:
        read_subscription(data)
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_read_assignment_with_user_data_is_rejected() -> None:
    with pytest.raises(OperatingError):
        read_assignment(b"\0\0" + b"\0\0\0\0" + b"\0\0\0\1x")
