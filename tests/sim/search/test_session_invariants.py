from __future__ import annotations

import pytest

from kraftjbod.core.ids import BrokerId
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.session_invariants import SessionInvariants


@pytest.mark.parametrize("relies_on_session_ms", [None, 60_000])
def test_broker_fenced_while_relying_on_its_session_is_found(
    relies_on_session_ms: int | None,
) -> None:
    findings: list[str] = []
    with SimulatedCluster(1, brokers=2, log_dirs=1) as cluster:
        invariants = SessionInvariants(ClusterView(cluster), found=findings.append)
        cluster.start()
        cluster.run_for(2_000)
        if relies_on_session_ms is not None:
            wiring = cluster.broker(1).wiring
            assert wiring is not None
            session = wiring.cluster.lifecycle._state._session
            session._timeout_ms = relies_on_session_ms
            session.lost = lambda: None  # type: ignore[method-assign] # it notices nothing
        cluster.network.partition("broker-1", "controller-100")
        for _ in range(600):
            cluster.run_for(20)
            invariants.look()
        state = cluster.controller().state
        assert state is not None and state.brokers[BrokerId(1)].fenced
    assert bool(findings) is (relies_on_session_ms is not None), findings
    if findings:
        assert findings[0].startswith("broker-1 is fenced by metadata up to ")
