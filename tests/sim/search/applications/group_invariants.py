"""``GroupInvariants``: invariants of a consumer group and its commits, as its members see them.

* A generation assigns a partition to at most one member, and a member sees rising generations.
* A member that takes over a partition finds the last acknowledged commit of an earlier generation,
  or a later commit of such a member that got no answer: an acknowledged commit is never lost, and
  committed offsets never go back.
* A member of a former generation cannot commit.
* No broker, not even a former coordinator, answers with an older offset than was acknowledged
  before the question.
* No broker answers an OffsetFetch with an error that Java clients before 3.9 treat as fatal.

A member whose commit got no answer joins again under another member id, so that the late commit
belongs to an earlier generation than later commits.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from kraftjbod.core.errors import ErrorCode


class Fate(StrEnum):
    """Outcome of a commit."""

    UNANSWERED = "not answered"
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
    """A member knew a later generation before the commit was sent."""
    fate: Fate = Fate.UNANSWERED


class GroupInvariants:
    """Members report what they receive and do; methods return the violation or an empty text."""

    def __init__(self, *, is_by_partition: bool = False) -> None:
        """
        :param is_by_partition: a member may stay in a former generation until it has released its
            lost partitions. Its generation is over for partitions that have another owner.
        """
        self._is_by_partition = is_by_partition
        self.generation = -1
        """The newest generation that any member knows."""
        #: Owner by generation and partition.
        self._owners: dict[tuple[int, int], str] = {}
        self._commits: defaultdict[int, list[Commit]] = defaultdict(list)
        #: By partition, the greatest offset whose commit was acknowledged.
        self._acknowledged: dict[int, int] = {}

    def assigned(self, member: str, generation: int, partitions: list[int]) -> str:
        """Note an assignment, which replaces the one of an older generation."""
        self.generation = max(self.generation, generation)
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member)
            if owner != member:
                return (
                    f"generation {generation} gives partition {partition} to {owner} and {member}"
                )
        return ""

    def commits(self, member: str, generation: int, partition: int, offset: int) -> Commit:
        """Note a commit that is about to be sent."""
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
        """Return the newest generation that ends earlier ones for the partition; -1 for none.

        With ``is_by_partition`` only generations that assign the partition to a member count.
        """
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
        """Check a committed offset that a member of ``generation`` has fetched.

        :param offset: -1 if nothing was committed.
        """
        earlier = [one for one in self._commits[partition] if one.generation <= generation]
        earlier.sort(key=lambda one: one.generation)
        allowed: set[int] = {-1}
        for commit in earlier:
            if commit.fate is Fate.ACKNOWLEDGED:
                allowed = {commit.offset}
            elif commit.fate is Fate.UNANSWERED:
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

    @staticmethod
    def check_fetch_code(broker: int, code: int) -> str:
        """Judge the error code of an answer to OffsetFetch."""
        if code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return ""
        return f"broker {broker} answers an OffsetFetch with {ErrorCode(code).name}"

    def check_answer(self, broker: int, partition: int, offset: int, least: int) -> str:
        """Judge an answered ``offset``; ``least`` is :meth:`least` at the time of the question."""
        if offset >= least:
            return ""
        return (
            f"broker {broker} answers that partition {partition} is at {offset}, and {least} was "
            "acknowledged before the question"
        )
