"""``ConsumerMembers``: members of a group whose coordinator assigns the partitions (KIP-848).

A member releases partitions that its assignment no longer has, mostly after a last commit, reports
that in its next heartbeat, and owns new partitions of an assignment at once. It reports
its partitions in full if they changed, and after a lost answer.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.group_members import (
    MOST_MEMBERS,
    NAME,
    REBALANCE_MS,
    TOPIC,
    TRIES,
    GroupMembers,
    Member,
)
from tests.sim.search.applications.transactional_producer import (
    GROUP,
    Coordinators,
)

_JOINING: Final = 0
_LEAVING: Final = -1
#: Share of the groups whose log takes small batches only.
_SMALL_BATCHES: Final = 0.5
#: Larger than the change by one request (about 600), and smaller than the removal of all members
#: (about 1,100).
_SMALL_BATCH_BYTES: Final = 900
#: All members of such a group end once, after the first number of seconds, and return after the
#: second one.
_ENDS_AFTER_S: Final = (0.5, 4.0)
_AWAY_S: Final = (0.5, 6.0)
#: Time limit after which members join even if the configuration was not set.
_LIMIT_MS: Final = 10_000
#: Share of the releases before which positions are committed.
_COMMITS_LAST: Final = 0.7


class ConsumerMembers(GroupMembers):
    """ConsumerGroupHeartbeat for everything; a generation is a member's epoch."""

    def __init__(self, rng: random.Random, around: Surroundings) -> None:
        super().__init__(rng, around, is_by_partition=True)
        self._may_join = asyncio.Event()
        self._has_small_batches = rng.random() < _SMALL_BATCHES
        if self._has_small_batches:
            self.member_count = MOST_MEMBERS
        #: The partitions that the coordinator knows to be owned, by the member's number.
        self._said: dict[int, frozenset[int]] = {}

    def start(self) -> None:
        super().start()
        if self._has_small_batches:
            self._around.begin(self._limit_batches(), "small batches")
            self._around.begin(self._end_all(), "end of all members")
        else:
            self._may_join.set()

    async def _limit_batches(self) -> None:
        """Limit the batches of the group's log below the size of the removal of all members."""
        client = self._around.client("small batches")
        coordinators = Coordinators(client)
        resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC)
        change = ConfigChange("max.message.bytes", str(_SMALL_BATCH_BYTES))

        async def limit() -> None:
            # The first FindCoordinator request has the topic created.
            await coordinators.find(GROUP, NAME)
            await incremental_alter_configs(client, {resource: [change]})

        try:
            await client.retry(limit, timeout_ms=_LIMIT_MS)
        except OperatingError as e:
            self._around.note(f"the group's batches stay large: {e}")
        self._may_join.set()

    async def _end_all(self) -> None:
        """End all members without a farewell, as a restart of all processes of an application does.

        If the coordinator moves before they are removed, their sessions end at the same time.
        """
        await self._may_join.wait()
        await asyncio.sleep(self._rng.uniform(*_ENDS_AFTER_S))
        self._around.note("all members end without a farewell")
        for member in self._members:
            self._ending[member.number] = self._rng.uniform(*_AWAY_S)

    async def _join(self, member: Member) -> None:
        await self._may_join.wait()
        member.member_id = member.member_id or str(Uuid.random(self._rng.randbytes))
        member.positions = {}
        self._said.pop(member.number, None)
        await member.client.refresh_metadata([TOPIC])
        await self._take(member, await self._exchange(member, _JOINING))

    async def _beat(self, member: Member) -> None:
        await self._take(member, await self._exchange(member, member.generation))

    async def _exchange(self, member: Member, epoch: int) -> ConsumerGroupHeartbeatResponse:
        owned, topic_id = frozenset(member.positions), self._topic_id(member)
        is_known = self._said.pop(member.number, None) == owned
        partitions = sorted(owned)
        kind = ConsumerGroupHeartbeatRequest
        owns = [kind.TopicPartitions(topic_id=topic_id, partitions=partitions)] if owned else []
        request = kind(
            group_id=NAME,
            member_id=member.member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=-1 if is_known else REBALANCE_MS,
            subscribed_topic_names=None if is_known else [TOPIC],
            topic_partitions=None if is_known else owns,
        )
        for _ in range(TRIES):
            answer = await member.coordinators.ask(GROUP, NAME, request)
            if not self._is_passing(member, answer.error_code):
                break
            await self._recover(member)
        self._judge_code(member, answer.error_code)
        self._said[member.number] = owned
        return answer

    async def _take(self, member: Member, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.member_epoch < member.generation:
            self._found(
                f"{member.member_id} was in epoch {member.generation} and is put into "
                f"{answer.member_epoch}"
            )
        if answer.assignment is None:
            member.generation = answer.member_epoch
            return
        given = [one for topic in answer.assignment.topic_partitions for one in topic.partitions]
        lost = member.positions.keys() - set(given)
        if lost and self._rng.random() < _COMMITS_LAST:
            await self._commit(member)
        member.generation = answer.member_epoch
        for partition in lost:
            del member.positions[partition]
        self._found(self.invariants.assigned(member.member_id, member.generation, given))
        await self._find(member, [one for one in given if one not in member.positions])

    async def _leave(self, member: Member) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=NAME, member_id=member.member_id, member_epoch=_LEAVING
        )
        try:
            await member.coordinators.ask(GROUP, NAME, request)
        except OperatingError as e:
            self._around.note(f"member {member.number} leaves without a farewell: {e}")

    def _topic_id(self, member: Member) -> bytes:
        return bytes(member.client.metadata.topic(TOPIC).topic_id)
