"""``dynamic_cordons``: cordoned directories that follow from committed configurations."""

from __future__ import annotations

import pytest

from kraftjbod.controller.brokers.dynamic_cordons import Configs, dynamic_cordons, dynamic_value
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.registrations import BrokerRegistration

A, B, LOST = (DirectoryId(bytes(15) + name) for name in (b"a", b"b", b"c"))
BROKER = BrokerRegistration(
    broker_id=BrokerId(7),
    epoch=BrokerEpoch(1),
    incarnation_id=Uuid(bytes(16)),
    listeners=(),
    rack=None,
    fenced=False,
    in_controlled_shutdown=False,
    log_dirs=(A, B),
    offline_log_dirs=(LOST,),
    log_dir_paths={A: "/a", B: "/b", LOST: "/c"},
)


def _configs(**values: str) -> Configs:
    """Return configurations of ``cordoned.log.dirs``: ``b7`` is broker 7, ``all`` is the
    default."""
    return {
        (ResourceType.BROKER, "" if name == "all" else name[1:]): {"cordoned.log.dirs": text}
        for name, text in values.items()
    }


@pytest.mark.parametrize(
    ("configs", "cordoned"),
    [
        (_configs(), None),
        (_configs(b8="/a"), None),
        (_configs(b7="/b,/a"), (A, B)),
        (_configs(b7="/c,/elsewhere"), (LOST,)),
        (_configs(all="*"), (A, B, LOST)),
        (_configs(all="*", b7=""), ()),
        (_configs(all="/a", b7="/b"), (B,)),
    ],
)
def test_dynamic_cordons_prefer_brokers_own_value_over_default(
    configs: Configs, cordoned: tuple[DirectoryId, ...] | None
) -> None:
    assert dynamic_cordons(configs, BROKER) == cordoned


def test_dynamic_value_ignores_other_keys() -> None:
    configs = {(ResourceType.BROKER, "7"): {"leader.replication.throttled.rate": "5"}}
    assert dynamic_value(configs, BROKER.broker_id) is None
