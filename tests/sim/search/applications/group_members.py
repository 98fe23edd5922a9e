"""``GroupMembers``: a consumer group by raw requests, for either protocol.

The members only commit growing positions of their partitions. Sometimes one leaves, or pauses for
longer than its session and then continues.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, may_pass
from kraftjbod.cli.clients.group_admin import committed_offsets
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.protocol.messages import (
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.group_invariants import Commit, Fate, GroupInvariants
from tests.sim.search.applications.transactional_producer import (
    GROUP,
    Coordinators,
)

TOPIC: Final = "shared"
PARTITIONS: Final = 3
NAME: Final = "readers"
MOST_MEMBERS: Final = 6
#: Numbers of members, equally likely. With many, some have no partition.
_MEMBERS: Final = (2, 2, MOST_MEMBERS)
SESSION_MS: Final = 2_500
REBALANCE_MS: Final = 2_500
_TURN_S: Final = 0.6
_AGAIN_S: Final = 0.2
_LOOK_S: Final = 0.1
#: Probability of leaving, per round of a member.
_LEAVES: Final = 0.01
_SILENT: Final = 0.02
#: The last versions with topic names.
_BY_NAME: Final = 9
_OUT: Final = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
)
TRIES: Final = 20


@dataclass(eq=False, slots=True)
class Member:
    """A member with this number; ``member_id`` changes whenever it joins as a new member."""

    number: int
    client: ClusterClient
    coordinators: Coordinators
    member_id: str = ""
    generation: int = -1
    positions: dict[int, int] = field(default_factory=dict)


class JoinsAgainError(Exception):
    """:param is_new: the member has to join with a new member id."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self.is_new = is_new


class GroupMembers(ABC):
    """Members of one group; see :class:`~.application.Application`."""

    topics: Mapping[str, int] = MappingProxyType({TOPIC: PARTITIONS})

    def __init__(
        self, rng: random.Random, around: Surroundings, *, is_by_partition: bool = False
    ) -> None:
        self.invariants = GroupInvariants(is_by_partition=is_by_partition)
        self._rng = rng
        self.member_count = rng.choice(_MEMBERS)
        self._around = around
        self._members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        #: Members that end without a farewell, and seconds until each returns as a new member.
        self._ending: dict[int, float] = {}
        #: Time of the last acknowledged commit by partition.
        self._committed_ms: dict[int, int] = {}

    def start(self) -> None:
        for number in range(self.member_count):
            client = self._around.client(f"member-{number}")
            member = Member(number, client, Coordinators(client))
            self._members.append(member)
            self._tasks.append(self._around.begin(self._live(member), f"member-{number}"))
        self._tasks.append(self._around.begin(self._look_on(), "onlooker"))

    def silent_since(self, since_ms: int) -> list[str]:
        generations = {member.generation for member in self._members}
        missing = [f"members are in generations {generations}"] if len(generations) > 1 else []
        return missing + [
            f"no member commits partition {partition} since {since_ms / 1000:.3f} s"
            for partition in range(PARTITIONS)
            if self._committed_ms.get(partition, -1) <= since_ms
        ]

    async def stop(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    def unsettled(self) -> list[str]:
        return []

    async def judge(self) -> list[str]:
        """Check the committed offsets at the end."""
        client = self._members[0].client
        found = await client.retry(lambda: committed_offsets(client, NAME))
        offsets = {tp.partition: one.offset for tp, one in found.items() if tp.topic == TOPIC}
        reported = (
            self.invariants.fetched(
                self.invariants.generation + 1, partition, offsets.get(partition, -1)
            )
            for partition in range(PARTITIONS)
        )
        return [finding for finding in reported if finding]

    async def close(self) -> None:
        await self._around.close()

    def _found(self, finding: str) -> None:
        if finding:
            self._around.found(f"group {NAME}: {finding}")

    # --- an onlooker -----------------------------------------------------------------------------

    async def _look_on(self) -> None:
        """Ask all brokers in turn for the group's offsets, not only the coordinator."""
        client = self._around.client("onlooker")
        while not self._is_stopping:
            await asyncio.sleep(_LOOK_S)
            least = {partition: self.invariants.least(partition) for partition in range(PARTITIONS)}
            try:
                if not client.metadata.brokers:
                    await client.refresh_metadata([])
                broker = self._rng.choice(sorted(client.metadata.brokers))
                answer = await client.request(
                    broker, _offsets_request(range(PARTITIONS)), max_version=_BY_NAME
                )
            except OperatingError:
                continue
            (group,) = answer.groups
            self._found(self.invariants.check_fetch_code(broker, group.error_code))
            if group.error_code != ErrorCode.NONE:
                continue
            for part in (part for topic in group.topics for part in topic.partitions):
                self._found(self.invariants.check_fetch_code(broker, part.error_code))
                if part.error_code == ErrorCode.NONE:
                    partition, offset = part.partition_index, part.committed_offset
                    self._found(
                        self.invariants.check_answer(broker, partition, offset, least[partition])
                    )

    # --- a member --------------------------------------------------------------------------------

    async def _live(self, member: Member) -> None:
        while not self._is_stopping:
            try:
                await self._join(member)
                while not self._is_stopping:
                    await self._take_turn(member)
            except JoinsAgainError as e:
                member.generation = -1
                if e.is_new:
                    member.member_id = ""
            except OperatingError as e:
                if not may_pass(e):
                    self._around.note(f"member {member.number} rejoins: {e}")
                    member.member_id = ""
                member.generation = -1
                await self._recover(member)
        await self._leave(member)

    async def _recover(self, member: Member) -> None:
        await asyncio.sleep(_AGAIN_S)
        try:
            await member.client.refresh_metadata([])
        except OperatingError:
            member.coordinators.forget(GROUP, NAME)

    async def _take_turn(self, member: Member) -> None:
        await asyncio.sleep(_TURN_S * self._rng.uniform(0.7, 1.3))
        if (away_s := self._ending.pop(member.number, None)) is not None:
            await asyncio.sleep(away_s)
            raise JoinsAgainError(is_new=True)
        chance = self._rng.random()
        if chance < _LEAVES:
            await self._leave(member)
            raise JoinsAgainError(is_new=True)
        if chance < _LEAVES + _SILENT:
            self._around.note(f"member {member.number} is silent")
            await asyncio.sleep(SESSION_MS * self._rng.uniform(0.8, 2.0) / 1000)
        else:
            await self._beat(member)
        await self._commit(member)

    @abstractmethod
    async def _join(self, member: Member) -> None:
        """Join, as the existing member or as a new one."""

    @abstractmethod
    async def _beat(self, member: Member) -> None:
        """Send a heartbeat, and follow the answer."""

    @abstractmethod
    async def _leave(self, member: Member) -> None: ...

    # --- what it is given ------------------------------------------------------------------------

    async def _find(self, member: Member, partitions: Sequence[int]) -> None:
        """Fetch the committed positions of the partitions, and continue from there."""
        offsets = await self._fetch(member, partitions)
        for partition in partitions:
            offset = offsets.get(partition, -1)
            self._found(self.invariants.fetched(member.generation, partition, offset))
            member.positions[partition] = max(0, offset)

    async def _fetch(self, member: Member, partitions: Sequence[int]) -> dict[int, int]:
        request = _offsets_request(partitions)
        answer = await member.coordinators.ask(GROUP, NAME, request, max_version=_BY_NAME)
        (reported,) = answer.groups
        self._judge_code(member, reported.error_code)
        parts = [part for topic in reported.topics for part in topic.partitions]
        for part in parts:
            self._judge_code(member, part.error_code)
        return {part.partition_index: part.committed_offset for part in parts}

    # --- committing ------------------------------------------------------------------------------

    async def _commit(self, member: Member) -> None:
        commits = []
        for partition in member.positions:
            member.positions[partition] += self._rng.randint(1, 5)
            commits.append(
                self.invariants.commits(
                    member.member_id, member.generation, partition, member.positions[partition]
                )
            )
        if commits:
            await self._until_answered(member, commits)

    async def _until_answered(self, member: Member, commits: Sequence[Commit]) -> None:
        """Repeat until an answer. After a try without one the request may still be in flight, so
        the sender continues as another member."""
        is_in_doubt = False
        for _ in range(TRIES):
            try:
                code = await self._try_to_commit(member, commits)
            except (ConnectionLostError, RequestTimedOutError):
                raise JoinsAgainError(is_new=True) from None
            if code == ErrorCode.NONE:
                self._note(commits, is_refused=False)
                return
            if code in _OUT or code == ErrorCode.REBALANCE_IN_PROGRESS:
                if not is_in_doubt:
                    self._note(commits, is_refused=True)
                self._judge_code(member, code)
            if not self._is_passing(member, code):
                self._judge_code(member, code)
            is_in_doubt = True
            await self._recover(member)
        raise JoinsAgainError(is_new=True)

    def _note(self, commits: Sequence[Commit], *, is_refused: bool) -> None:
        for commit in commits:
            assert commit.fate is Fate.UNANSWERED, commit
            self._found(self.invariants.answered(commit, is_refused=is_refused))
            if not is_refused:
                self._committed_ms[commit.partition] = self._around.now_ms()

    async def _try_to_commit(self, member: Member, commits: Sequence[Commit]) -> int:
        kind = OffsetCommitRequest
        topic = kind.OffsetCommitRequestTopic(
            name=TOPIC,
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=one.partition,
                    committed_offset=one.offset,
                    committed_metadata="",
                )
                for one in commits
            ],
        )
        request = kind(
            group_id=NAME,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            topics=[topic],
        )
        answer = await member.coordinators.ask(GROUP, NAME, request, max_version=_BY_NAME)
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        return next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE)

    # --- answers ---------------------------------------------------------------------------------

    def _is_passing(self, member: Member, code: int) -> bool:
        """Whether the request should be repeated, possibly at another coordinator."""
        if code == ErrorCode.NONE or not kafka_error(code, NAME).retriable:
            return False
        member.coordinators.forget(GROUP, NAME)
        return True

    def _judge_code(self, member: Member, code: int) -> None:
        """:raises JoinsAgainError: the member must join. :raises OperatingError: other errors."""
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._found(f"member {member.number} is answered {ErrorCode(code).name}")
        if code in _OUT or code == ErrorCode.REBALANCE_IN_PROGRESS:
            raise JoinsAgainError(is_new=code == ErrorCode.UNKNOWN_MEMBER_ID)
        member.coordinators.forget(GROUP, NAME)
        raise kafka_error(code, f"member {member.number} of group {NAME}")


def _offsets_request(partitions: Sequence[int]) -> OffsetFetchRequest:
    kind = OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(partitions))
    return kind(groups=[kind.OffsetFetchRequestGroup(group_id=NAME, topics=[topic])])
