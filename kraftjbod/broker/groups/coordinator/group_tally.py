"""PURE. ``GroupTally``: numbers of groups by kind and state, and of their members.

The numbers are changed with each group, so that reading them costs the same for any number of
groups. The caller puts a group's standing after each change of the group.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kraftjbod.broker.groups.classic.group_events import GroupState


class Standing(NamedTuple):
    """The part of one group that is counted."""

    is_consumer: bool
    state: GroupState
    members: int


class GroupTally:
    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._groups: Counter[tuple[bool, GroupState]] = Counter()
        #: Number of members of all groups.
        self.members = 0

    def __len__(self) -> int:
        return len(self._standings)

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._standings

    def group_ids(self) -> list[str]:
        """Return the ids of all counted groups, in one copy."""
        return list(self._standings)

    def count(self, *, is_consumer: bool, state: GroupState) -> int:
        """Return the number of groups of that kind in that state."""
        return self._groups[is_consumer, state]

    def put(self, group_id: str, standing: Standing | None) -> None:
        """Count the group with its new standing instead of its former one.

        :param standing: None if the group does not exist any more.
        """
        before = self._standings.get(group_id)
        if standing == before:
            return
        if before is not None:
            self._groups[before.is_consumer, before.state] -= 1
            self.members -= before.members
        if standing is None:
            del self._standings[group_id]
            return
        self._standings[group_id] = standing
        self._groups[standing.is_consumer, standing.state] += 1
        self.members += standing.members
