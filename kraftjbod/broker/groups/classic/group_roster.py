"""PURE. ``Member`` and ``GroupRoster``: members, leader and common protocols of a classic group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kraftjbod.broker.groups.classic.group_events import GroupState, JoinRequested, Token
from kraftjbod.broker.groups.records.group_records import GroupMember, GroupMetadata
from kraftjbod.core.errors import ErrorCode

Terms = tuple[tuple[tuple[str, bytes], ...], int, int]
"""Protocols, session timeout and rebalance timeout of a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    initial_rebalance_delay_ms: int
    max_size: int


class Member:
    """A member of a classic group: its protocols, timeouts and assignment, and its waiting
    requests.

    ``join_token`` and ``sync_token`` identify a JoinGroup or SyncGroup request that waits for its
    answer; None if none waits. ``session_deadline_ms`` is monotonic; None if there is no deadline.
    Only the group changes a member.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "has_synced",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(self, member_id: str, request: JoinRequested) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols
        self.assignment = b""
        #: The waiting JoinGroup or SyncGroup request.
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        self.session_deadline_ms: int | None = None
        #: It has not been in a generation yet.
        self.is_new = True
        #: It has sent SyncGroup in this generation.
        self.has_synced = False

    @classmethod
    def loaded(cls, kept: GroupMember, protocol_name: str | None) -> Member:
        member = cls.__new__(cls)
        member.member_id = kept.member_id
        member.instance_id = kept.instance_id
        member.client_id = kept.client_id
        member.client_host = kept.client_host
        member.session_timeout_ms = kept.session_timeout_ms
        member.rebalance_timeout_ms = kept.rebalance_timeout_ms
        member.protocols = ((protocol_name or "", kept.subscription),)
        member.assignment = kept.assignment
        member.join_token = member.sync_token = member.session_deadline_ms = None
        member.is_new = False
        member.has_synced = True
        return member

    def __repr__(self) -> str:
        waits = "joins" if self.is_joining else "syncs" if self.sync_token is not None else ""
        return f"<Member {self.member_id} {waits}>"

    @property
    def is_joining(self) -> bool:
        return self.join_token is not None

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    @property
    def terms(self) -> Terms:
        return self.protocols, self.session_timeout_ms, self.rebalance_timeout_ms

    def take(self, request: JoinRequested) -> None:
        """Replace the member's protocols and timeouts by those of a repeated JoinGroup."""
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    def metadata_for(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def to_group_member(self, protocol_name: str | None, assignment: bytes) -> GroupMember:
        """Return the member's part of the group metadata record.

        :param assignment: the assignment to write, which may not be in effect yet.
        """
        return GroupMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata_for(protocol_name),
            assignment=assignment,
        )


class GroupRoster:
    """The members, the leader and the common protocols of a classic group. Only the group changes
    it.

    It does not know the group's state or its requests. Counts are updated with each member, so that
    a JoinGroup does not have to visit all other members.
    """

    def __init__(self) -> None:
        self._joining: set[Member] = set()
        #: The protocols that all members have; None until they are next needed.
        self._common: set[str] | None = None
        #: In the order of joining.
        self.members: dict[str, Member] = {}
        #: Member ids by instance id.
        self.static_members: dict[str, str] = {}
        #: Member ids assigned to members that must send JoinGroup again, with their deadlines.
        self.pending: dict[str, int] = {}
        #: Member id of the group leader: the first member, until it leaves or does not rejoin.
        self.leader: str | None = None

    @property
    def are_all_joining(self) -> bool:
        return len(self._joining) == len(self.members)

    def swap_join_token(self, member: Member, token: Token | None) -> Token | None:
        """Set the waiting JoinGroup of a member, and return the previous one."""
        before, member.join_token = member.join_token, token
        if token is not None and self.members.get(member.member_id) is member:
            self._joining.add(member)
        else:
            self._joining.discard(member)
        return before

    def take(self, member: Member, request: JoinRequested) -> None:
        """Replace the member's protocols and timeouts by those of a repeated JoinGroup."""
        if member.protocol_names != {name for name, _ in request.protocols}:
            self._common = None
        member.take(request)

    def restore(self, member: Member, before: Terms) -> None:
        """Undo :meth:`take`: restore the protocols and timeouts ``before``."""
        self._common = None
        member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms = before

    def add(self, member: Member) -> None:
        if not self.members:
            self._common = None
        elif self._common is not None:
            self._common &= member.protocol_names
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self._joining.discard(member)
        self._common = None
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Change the member id of a static member; its position among the members stays."""
        assert member.instance_id is not None, member
        if self.leader == member.member_id:
            self.leader = member_id
        self.members = {
            member_id if one is member else one.member_id: one for one in self.members.values()
        }
        member.member_id = member_id
        self.static_members[member.instance_id] = member_id

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, else elect a joined member; return False if there is
        none."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.is_joining:
            return True
        for member in self.members.values():
            if member.is_joining:
                self.leader = member.member_id
                return True
        return False

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if the sender is a member and, if it names an instance id, is its present
        holder.

        Else return UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
        if instance_id is not None:
            known_as = self.static_members.get(instance_id)
            if known_as is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_as != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def admits_member(self, member_id: str, state: GroupState, max_size: int) -> bool:
        """Return whether ``group.max.size`` admits the member.

        An empty or dead group admits any member. In a join phase the limit applies to the members
        that have joined, so the last ones to rejoin are refused.
        """
        match state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                member = self.members.get(member_id)
                is_in = member is not None and member.is_joining
                return is_in or len(self._joining) < max_size
            case _:
                return member_id in self.members or len(self.members) < max_size

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members; 0 without members."""
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    def deadlines(self) -> Iterator[int]:
        """Yield the deadlines of sessions and pending member ids."""
        yield from self.pending.values()
        for member in self.members.values():
            if member.session_deadline_ms is not None:
                yield member.session_deadline_ms

    # --- answers and persisted forms -------------------------------------------------------------

    def subscriptions(self, protocol_name: str | None) -> tuple[tuple[str, str | None, bytes], ...]:
        """Return member id, instance id and metadata of each member, for the group leader."""
        return tuple(
            (one.member_id, one.instance_id, one.metadata_for(protocol_name))
            for one in self.members.values()
        )

    def assignments(self) -> dict[str, bytes]:
        """Return the assignments that are in effect, by member id."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def to_group_metadata(
        self,
        protocol_type: str | None,
        generation: int,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
    ) -> GroupMetadata:
        """Return the group metadata record.

        :param assignments: the assignments to write, by member id, possibly not in effect yet.
        """
        return GroupMetadata(
            protocol_type=protocol_type or "",
            generation=generation,
            protocol_name=protocol_name,
            leader=self.leader,
            members=tuple(
                member.to_group_member(protocol_name, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ),
        )

    # --- protocols -------------------------------------------------------------------------------

    def supports(self, request: JoinRequested, protocol_type: str | None) -> bool:
        """Return whether the request names the group's protocol type and a protocol that all
        members have.

        An empty group supports every request that names a type and a protocol.
        """
        if not request.protocol_type or not request.protocols:
            return False
        if not self.members:
            return True
        if protocol_type != request.protocol_type:
            return False
        return not self._common_protocols().isdisjoint(name for name, _ in request.protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all members have; on a tie,
        the last one by name.
        """
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return max(votes, key=lambda name: (votes[name], name))

    def _common_protocols(self) -> set[str]:
        if self._common is None:
            counts = Counter(
                name for member in self.members.values() for name in member.protocol_names
            )
            self._common = {name for name, count in counts.items() if count == len(self.members)}
        return self._common
