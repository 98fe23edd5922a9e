"""PURE. ``MetadataRefusals``: decides when refusals by controllers of another log fail a call.

A controller refuses with FOREIGN_METADATA only if a majority follows it. Three cases look alike
for a while:

* One controller was formatted as a separate quorum, and the other voters elect a leader.
* A majority lost its disks and leads a new log. The voter with the old log is dead, or answers that
  it does not lead. So does a follower of the new leader.
* Every controller has another log.

Only the third is certain, because each controller has refused. In the other two cases the call is
repeated until its deadline. Then a client's request fails with the error of another controller,
which is retriable. A broker's own call fails with the refusal if it was repeated, so that the
broker reports it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError

#: A refusal counts at the deadline once this many were received. The first one may come from a
#: controller that has just been replaced.
_REFUSALS_AT_DEADLINE: Final = 2


class MetadataRefusals:
    """The failures of one call that is repeated at the controllers in turn. Decides which of them
    the call raises.

    A *refusal* is the error FOREIGN_METADATA: that controller has another metadata log than this
    broker.

    :param is_for_client: the call forwards a client's request.
    """

    def __init__(self, *, is_for_client: bool) -> None:
        self._is_for_client = is_for_client
        self._refusing = set[Hashable]()
        self._count = 0
        self._refusal: OperatingError | None = None
        self._other: OperatingError | None = None

    def note_failure(self, controller: Hashable, error: OperatingError) -> None:
        """Record the answer of ``controller``, or that it was not reached."""
        if error.code is ErrorCode.FOREIGN_METADATA:
            self._refusing.add(controller)
            self._count += 1
            self._refusal = error
        else:
            # A controller that restarted with the right disk does not refuse any more.
            self._refusing.discard(controller)
            self._other = error

    def is_certain(self, controllers: Collection[Hashable]) -> bool:
        """Return whether the last answer of each of the ``controllers`` is a refusal."""
        return self._refusing.issuperset(controllers)

    def failure_at_deadline(self, last: OperatingError) -> OperatingError:
        """Return the error to raise from a call at its deadline. ``last`` is its last failure.

        A client's call prefers an error of another controller to a refusal. A broker's own call
        fails with the refusal if it was repeated, and else prefers another error.
        """
        if self._is_for_client:
            preferred = self._other if last is self._refusal else None
        else:
            preferred = self._refusal if self._count >= _REFUSALS_AT_DEADLINE else self._other
        return preferred or last
