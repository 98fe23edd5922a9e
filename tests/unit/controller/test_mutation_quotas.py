"""``MutationQuotas``: strict and permissive requests, by ``ControlManagers`` (KIP-599)."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.client_quota import QuotaEntity
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.loop.client_rates import BURST_S
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quota_messages import (
    AlterClientQuotasRequestRpc,
    QuotaChange,
    QuotaOp,
)
from tests.golden.transcript import World

KEY = "controller_mutation_rate"
BURST = BURST_S[KEY]
STRICT = m.MutatingClient(user="alice", client_id="app", is_strict=True)
PERMISSIVE = m.MutatingClient(user="alice", client_id="app")
OVER = ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
def world() -> World:
    """Alice may create and delete one partition per second."""
    made = World()
    for command in (f"feature {LATEST_METADATA_VERSION.value}", "up 1 dirs=a"):
        list(made.run(command))
    limit(made, (("user", "alice"),), 1.0)
    return made


def limit(world: World, entity: QuotaEntity, rate: float | None) -> None:
    change = QuotaChange(entity=entity, ops=(QuotaOp(key=KEY, value=rate),))
    response: Any = world.ask(AlterClientQuotasRequestRpc(changes=(change,)))
    assert [one.error_code for one in response.results] == [ErrorCode.NONE]


def create(
    world: World, client: m.MutatingClient | None, validate_only: bool = False, **counts: int
) -> tuple[list[int], int]:
    topics = tuple(
        m.NewTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in counts.items()
    )
    request = m.CreateTopicsRequestRpc(topics=topics, charged=client, validate_only=validate_only)
    response: Any = world.ask(request)
    return [topic.error_code for topic in response.topics], response.throttle_time_ms


def test_strict_creations_beyond_the_quota_are_refused_topic_by_topic(world: World) -> None:
    codes, throttle_ms = create(world, STRICT, a=BURST, b=2, c=1, d=1)
    assert codes == [0, 0, OVER, OVER], "a request may exceed the quota by its last topic"
    assert throttle_ms == 2000
    assert {topic.name for topic in world.state.topics.values()} == {"a", "b"}
    assert create(world, STRICT, c=1) == ([OVER], 2000)


def test_permissive_creations_beyond_the_quota_are_accepted_and_throttled(world: World) -> None:
    assert create(world, PERMISSIVE, a=BURST, b=2, c=1) == ([0, 0, 0], 3000)
    assert create(world, PERMISSIVE, d=1) == ([0], 4000)


def test_deletions_and_added_partitions_use_the_same_quota(world: World) -> None:
    assert create(world, STRICT, a=BURST + 1, b=1) == ([0, OVER], 1000)
    create(world, None, b=1)
    grow = m.CreatePartitionsRequestRpc(
        topics=(m.MorePartitions(name="a", count=BURST + 2),), charged=STRICT
    )
    grown: Any = world.ask(grow)
    assert [one.error_code for one in grown.topics] == [OVER]
    refs = (m.TopicRef(name="a"), m.TopicRef(name="b"))
    deleted: Any = world.ask(m.DeleteTopicsRequestRpc(topics=refs, charged=STRICT))
    assert ([one.error_code for one in deleted.topics], deleted.throttle_time_ms) == (
        [OVER, OVER],
        1000,
    )
    deleted = world.ask(m.DeleteTopicsRequestRpc(topics=refs, charged=PERMISSIVE))
    assert ([one.error_code for one in deleted.topics], deleted.throttle_time_ms) == (
        [0, 0],
        1000 * (1 + BURST + 1 + 1),
    )


def test_refused_topics_are_free_and_validated_ones_are_charged(world: World) -> None:
    """Kafka charges requests that only validate, too."""
    assert create(world, STRICT, a=-5) == ([ErrorCode.INVALID_PARTITIONS], 0)
    assert create(world, STRICT, validate_only=True, a=BURST + 1) == ([0], 0)
    assert create(world, STRICT, a=1) == ([OVER], 1000)


def test_other_clients_and_requests_without_a_client_are_free(world: World) -> None:
    bob = m.MutatingClient(user="bob", client_id="app", is_strict=True)
    assert create(world, bob, a=2 * BURST, b=1) == ([0, 0], 0)
    assert create(world, None, c=2 * BURST, d=1) == ([0, 0], 0)


def test_removed_quota_limits_nothing(world: World) -> None:
    assert create(world, STRICT, a=BURST + 1, b=1) == ([0, OVER], 1000)
    limit(world, (("user", "alice"),), None)
    assert create(world, STRICT, b=1) == ([0], 0)
