"""PURE. ``GroupLaws``: what a consumer group and its commits must be like, as its members see it.

* A generation gives a partition to one member at most, and the generations that a member hears of
  grow.
* Who takes a partition over finds what was committed last by a member of an earlier generation, or
  what such a member asked for later and was told nothing of: an acknowledged commit is never lost,
  and never goes back.
* A member of a generation that is over commits nothing.
* Whichever broker a client asks, and whatever that broker believes to coordinate: an answer is not
  older than what was acknowledged before the question.

A member whose commit was not answered joins anew, as another one: what is late of it is of an
earlier generation than what comes next.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """Of a commit."""

    ON_ITS_WAY = "not answered"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class Commit:
    """``offset`` of ``partition``, by a member of ``generation``."""

    partition: int
    offset: int
    generation: int
    member: str
    is_late: bool = False
    """A member had heard of a later generation before it was sent."""
    fate: Fate = Fate.ON_ITS_WAY


class GroupLaws:
    """Members say what they hear and do; what is wrong with it comes back, or an empty text."""

    def __init__(self, *, is_by_partition: bool = False) -> None:
        """
        :param is_by_partition: a member may stay in a former generation until it has given up what
            others get: its generation is over for the partitions that were given to them.
        """
        self._is_by_partition = is_by_partition
        self.generation = -1
        """The newest that any member heard of."""
        #: By generation and partition.
        self._owners: dict[tuple[int, int], str] = {}
        self._commits: defaultdict[int, list[Commit]] = defaultdict(list)
        #: By partition, the greatest offset whose commit was acknowledged.
        self._acknowledged: dict[int, int] = {}

    def assigned(self, member: str, generation: int, partitions: list[int]) -> str:
        """A member was given these; it has no older generation's now."""
        self.generation = max(self.generation, generation)
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner != member:
                return (
                    f"generation {generation} gives partition {partition} to {owner} and {member}"
                )
        return ""

    def commits(self, member: str, generation: int, partition: int, offset: int) -> Commit:
        """It is about to be sent."""
        commit = Commit(
            partition=partition,
            offset=offset,
            generation=generation,
            member=member,
            is_late=generation < self._newest_of(partition),
        )
        self._commits[partition].append(commit)
        return commit

    def _newest_of(self, partition: int) -> int:
        """The generation that any member heard of and that matters to whoever commits there."""
        if not self._is_by_partition:
            return self.generation
        return max((g for g, owned in self._owners if owned == partition), default=-1)

    def answered(self, commit: Commit, *, is_refused: bool) -> str:
        commit.fate = Fate.REFUSED if is_refused else Fate.ACKNOWLEDGED
        if not is_refused:
            known = self._acknowledged.get(commit.partition, -1)
            self._acknowledged[commit.partition] = max(known, commit.offset)
        if commit.is_late and not is_refused:
            return (
                f"{commit.member} committed {commit.offset} of partition {commit.partition} in "
                f"generation {commit.generation}, when {self._newest_of(commit.partition)} had "
                "begun"
            )
        return ""

    def fetched(self, generation: int, partition: int, offset: int) -> str:
        """A member of ``generation`` was told where its partition is.

        :param offset: -1 if nothing was committed.
        """
        earlier = [one for one in self._commits[partition] if one.generation <= generation]
        earlier.sort(key=lambda one: one.generation)
        allowed: set[int] = {-1}
        for commit in earlier:
            if commit.fate is Fate.ACKNOWLEDGED:
                allowed = {commit.offset}
            elif commit.fate is Fate.ON_ITS_WAY:
                allowed.add(commit.offset)
        allowed |= {one.offset for one in self._commits[partition] if one.generation > generation}
        if offset in allowed:
            return ""
        return (
            f"generation {generation} finds partition {partition} at {offset}, where "
            f"{' or '.join(map(str, sorted(allowed)))} was committed"
        )

    def least(self, partition: int) -> int:
        """Return the least offset that may be answered to a question asked from now on."""
        return self._acknowledged.get(partition, -1)

    def told(self, broker: int, partition: int, offset: int, least: int) -> str:
        """A broker answered ``offset`` to a question that was asked when :meth:`least` was that."""
        if offset >= least:
            return ""
        return (
            f"broker {broker} tells that partition {partition} is at {offset}, and {least} was "
            "acknowledged before it was asked"
        )
