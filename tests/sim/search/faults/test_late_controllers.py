from __future__ import annotations

import pytest

from kraftjbod.controller.quorum.registrations import registered
from kraftjbod.metadata.records import RegisterControllerRecord
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_controller_messages import ControllerRegistrationRequest
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Kind

OF_LATE_CONTROLLERS = {Kind.LATE_FOLLOWER, Kind.LATE_REGISTRATION}


def test_late_controller_receives_its_snapshot_in_many_slices() -> None:
    outcome = play([Kind.LATE_FOLLOWER], controllers=3)
    assert outcome.played == {Kind.LATE_FOLLOWER: 1}
    assert outcome.fired["raft.small_slice"] > 10


def test_controller_that_cannot_know_its_registration_registers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repeated: list[int] = []

    def note_repeated(
        state: MetadataState, cluster_id: str, request: ControllerRegistrationRequest
    ) -> tuple[RegisterControllerRecord, ...]:
        records = registered(state, cluster_id, request)
        if not records:
            repeated.append(request.controller_id)
        return records

    monkeypatch.setattr("kraftjbod.controller.control_managers.registered", note_repeated)
    outcome = play([Kind.LATE_REGISTRATION] * 3, controllers=3, every_ms=5_000)
    assert outcome.played == {Kind.LATE_REGISTRATION: 3}
    assert repeated
