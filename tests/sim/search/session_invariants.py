"""``SessionInvariants``: no broker is deposed while it believes that no other broker can lead.

The answer to a heartbeat says for how long no other broker leads this broker's partitions. A
controller of an earlier term may also answer until its lease is over, so the next controller waits
for the end of every session that any controller may have announced (ADR 98). Hence this invariant:
once metadata that fences a broker is committed, the broker is in doubt about its session, or it
asked to be fenced, or its own metadata shows it.

Monotonic clocks of different rates are not covered by that promise, and are not judged.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerState
from kraftjbod.metadata.state import MetadataState
from tests.sim.search.cluster_view import BrokerSession, ClusterView


class SessionInvariants:
    """:param found: called with one sentence per broker and incarnation that was deposed early."""

    def __init__(self, view: ClusterView, *, found: Callable[[str], None]) -> None:
        self._view = view
        self._report = found
        self._said: set[str] = set()

    def look(self) -> None:
        decided = self._view.decided()
        if decided is None or decided.offset > self._view.committed_offset():
            return
        for session in self._view.sessions():
            if session.has_drifted or session.may_be_deposed:
                continue
            if session.state is BrokerState.RUNNING and _is_deposed(decided, session):
                sentence = (
                    f"{session.name} is fenced by metadata up to {decided.offset}, and relies on "
                    f"its session: its own metadata ends at {session.metadata.offset}"
                )
                key = f"{session.name} {session.epoch}"
                if key not in self._said:
                    self._said.add(key)
                    self._report(sentence)


def _is_deposed(decided: MetadataState, session: BrokerSession) -> bool:
    """Whether ``decided`` fences an incarnation that its own metadata calls unfenced."""
    own = session.metadata.brokers.get(session.broker_id)
    if decided.offset < session.metadata.offset or own is None or own.fenced:
        return False
    now = decided.brokers.get(session.broker_id)
    return now is None or now.fenced or now.epoch != session.epoch
