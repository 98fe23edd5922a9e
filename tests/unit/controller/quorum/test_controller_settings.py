"""Settings in force at a controller; tests/golden/controllers.txt has the permitted changes."""

from __future__ import annotations

import pytest

from kraftjbod.controller.quorum.controller_settings import settings_in_force
from kraftjbod.core.config import DYNAMIC_CONTROLLER_KEYS, ControllerConfig
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import ResourceType
from tests.golden.transcript import World

TIMEOUT = "broker.session.timeout.ms"
ME = BrokerId(100)
FILE = ControllerConfig.from_properties(
    {
        "process.roles": "controller",
        "node.id": "100",
        "controller.quorum.voters": "100@h:1",
        "listeners": "CONTROLLER://h:1",
        TIMEOUT: "5000",
    },
    source="test",
    base_dir="/",
)


@pytest.mark.parametrize(
    ("of_all", "own", "of_another", "in_force"),
    [
        (None, None, "1", 5000),
        ("6000", None, "1", 6000),
        ("6000", "7000", "1", 7000),
        (None, "7000", "1", 7000),
        ("6000", "no number", "1", 6000),
        ("no number", None, "1", 5000),
    ],
)
def test_settings_in_force_prefer_own_value_over_default_over_file(
    of_all: str | None, own: str | None, of_another: str, in_force: int
) -> None:
    given = {"": of_all, "100": own, "101": of_another}
    configs = {
        (ResourceType.BROKER, name): {TIMEOUT: text, "log.dirs": "/x"}
        for name, text in given.items()
        if text is not None
    }
    settings = settings_in_force(FILE, configs, ME)
    assert settings.broker_session_timeout_ms == in_force
    assert settings.by_key().keys() == DYNAMIC_CONTROLLER_KEYS


def test_session_timeout_change_applies_after_brokers_receive_it() -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    for line in ("up 1 dirs=a", "advance 5000ms"):
        list(world.run(line))
    list(world.run(f"configure broker: set:{TIMEOUT}=4000"))
    assert list(world.run("sweep")) == ["nothing to do"]
    for line in ("heartbeat 1", "advance 4000ms"):
        list(world.run(line))
    assert list(world.run("sweep")) == ["BrokerRegistrationChange 1 fenced"]


@pytest.mark.parametrize("part_size", [1, 100])
def test_managers_restored_from_snapshot_use_its_settings(part_size: int) -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    list(world.run("controller 100"))
    list(world.run(f"configure broker:100 set:{TIMEOUT}=4000"))
    world.rebuild_from_snapshot(part_size)
    assert world.managers.set_by_metadata() == {TIMEOUT: 4000}
    list(world.run(f"configure broker:100 delete:{TIMEOUT}"))
    assert world.managers.set_by_metadata() == {}


def test_config_of_unregistered_controller_can_be_deleted_but_not_set() -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    list(world.run("controller 100"))
    list(world.run(f"configure broker:100 set:{TIMEOUT}=4000"))
    list(world.run("unregister_controller 100"))
    assert list(world.run(f"configure broker:100 delete:{TIMEOUT}"))[-1] == "reply 100: NONE"
    (refused,) = world.run(f"configure broker:100 set:{TIMEOUT}=4000")
    assert refused.startswith("reply 100: BROKER_ID_NOT_REGISTERED")


def test_unclean_leader_election_depends_on_the_cluster_default() -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    for line in ("up 1 dirs=a", "up 2 dirs=b", "topic t replicas=1,2", "alter 1 t-0 isr=1"):
        list(world.run(line))
    world.now_ms += 10_000
    list(world.run("heartbeat 2"))
    list(world.run("sweep"))
    assert list(world.run("unclean")) == ["nothing to do"]
    list(world.run("configure broker: set:unclean.leader.election.enable=true"))
    assert "leader none->2" in next(iter(world.run("unclean")))
