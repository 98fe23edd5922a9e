"""Feature levels; tests/golden/levels.txt has the history of a cluster."""

from __future__ import annotations

import pytest

from kraftjbod.controller.feature_control import (
    MAX_NAMED,
    FeatureControlManager,
    UpgradeType,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import FeatureLevelRecord
from kraftjbod.protocol.rpc_messages import FeatureUpdate, UpdateFeaturesRequestRpc
from tests.golden.transcript import World

UP, SAFE, UNSAFE = UpgradeType


def update(level: int, kind: UpgradeType = UP, name: str = "metadata.version") -> FeatureUpdate:
    return FeatureUpdate(name=name, level=level, upgrade_type=kind)


def outcomes(
    world: World, *updates: FeatureUpdate, validate_only: bool = False
) -> tuple[list[ErrorCode], list[int]]:
    """Return the code of each update, and the recorded levels."""
    manager = FeatureControlManager(state=world.state)
    result = manager.update(UpdateFeaturesRequestRpc(updates=updates, validate_only=validate_only))
    levels = [r.feature_level for r in result.records if isinstance(r, FeatureLevelRecord)]
    return [outcome.error_code for outcome in result.response.results], levels


@pytest.mark.parametrize(
    ("present", "wanted", "kind", "code"),
    [
        (14, 17, UP, ErrorCode.NONE),
        (14, 30, UP, ErrorCode.NONE),
        (17, 17, UP, ErrorCode.NONE),
        (17, 17, SAFE, ErrorCode.NONE),
        (17, 14, UP, ErrorCode.INVALID_UPDATE_VERSION),
        (17, 14, SAFE, ErrorCode.NONE),
        (17, 30, SAFE, ErrorCode.INVALID_UPDATE_VERSION),
        (17, 30, UNSAFE, ErrorCode.INVALID_UPDATE_VERSION),
        (30, 17, SAFE, ErrorCode.NONE),
        (17, 0, UNSAFE, ErrorCode.INVALID_UPDATE_VERSION),
        (17, 18, UP, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_update_features_allows_level_by_upgrade_type(
    present: int, wanted: int, kind: UpgradeType, code: ErrorCode
) -> None:
    world = World(MetadataVersion(present))
    expected = [wanted] if code is ErrorCode.NONE and wanted != present else []
    assert outcomes(world, update(wanted, kind)) == ([code], expected)
    assert outcomes(world, update(wanted, kind), validate_only=True) == ([code], [])


def test_update_features_applies_no_update_if_one_is_refused() -> None:
    codes, levels = outcomes(World(), update(30), update(1, name="kraft.version"))
    assert codes == [ErrorCode.FEATURE_UPDATE_FAILED, ErrorCode.INVALID_UPDATE_VERSION]
    assert levels == []


def test_update_features_refuses_feature_named_twice() -> None:
    codes, levels = outcomes(World(), update(30), update(17))
    assert (codes, levels) == ([ErrorCode.INVALID_REQUEST] * 2, [])


def test_update_features_requires_support_of_all_registered_brokers() -> None:
    world = World()
    for line in ("up 1 dirs=a metadata_version=30", "register 2 dirs=b metadata_version=17"):
        list(world.run(line))
    reported = list(world.run("feature 30"))
    assert reported == [
        "reply metadata.version: FEATURE_UPDATE_FAILED: Not every registered broker supports "
        "metadata.version 30: broker 2 supports 1 to 17. Upgrade their software first."
    ]


def test_update_features_requires_reported_support_of_all_voters() -> None:
    says = {
        BrokerId(100): {"metadata.version": (14, 30)},
        BrokerId(101): {"metadata.version": (14, 17)},
        BrokerId(102): {},
    }
    manager = FeatureControlManager(state=World().state, controllers=lambda: says)
    refused = manager.update(UpdateFeaturesRequestRpc(updates=(update(30),)))
    (outcome,) = refused.response.results
    assert outcome.error_code is ErrorCode.FEATURE_UPDATE_FAILED and not refused.records
    assert outcome.error_message == (
        "Not every registered broker and controller supports metadata.version 30: "
        "controller 101 supports 14 to 17, controller 102 did not say what it supports: it is "
        "away, or its software is older. Upgrade their software first."
    )
    assert (
        manager.update(UpdateFeaturesRequestRpc(updates=(update(17),)))
        .response.results[0]
        .error_code
        is ErrorCode.NONE
    ), "which is the current level"
    says[BrokerId(101)] = says[BrokerId(102)] = {"metadata.version": (14, 30)}
    assert manager.update(UpdateFeaturesRequestRpc(updates=(update(30),))).records


def test_refused_downgrade_limits_its_list_of_losses() -> None:
    world = World()
    for broker_id in range(1, MAX_NAMED + 4):
        dirs = f"{chr(96 + broker_id)}1,{chr(96 + broker_id)}2"
        list(world.run(f"up {broker_id} dirs={dirs} metadata_version=30"))
    (reported,) = world.run("feature 14 down=safe")
    assert "broker 10 has 2 and 3 more)" in reported
    assert "broker 11" not in reported
