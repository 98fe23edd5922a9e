"""Registrations of controllers; tests/golden/controllers.txt has the other scenarios."""

from __future__ import annotations

from kraftjbod.controller.quorum.registrations import MAX_CONTROLLERS
from kraftjbod.core.metadata_version import MetadataVersion
from tests.golden.transcript import World


def test_register_controller_refuses_new_ones_beyond_the_limit() -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    for node_id in range(MAX_CONTROLLERS):
        assert list(world.run(f"controller {node_id}"))[-1] == "reply: registered"
    (refused,) = world.run("controller 1000")
    assert refused.startswith("error POLICY_VIOLATION: 100 controllers are registered")
    assert list(world.run("controller 7 incarnation=anew"))[-1] == "reply: registered"
    list(world.run("unregister_controller 8"))
    assert list(world.run("controller 1000"))[-1] == "reply: registered"
