"""PURE. ``FeatureControlManager``: raises and lowers the feature levels of the cluster (KIP-584).

There are four: ``metadata.version``, ``eligible.leader.replicas.version`` (KIP-966),
``transaction.version`` (KIP-890) and ``group.version`` (KIP-848).

* A level is accepted only if this version, every registered broker and every voting or registered
  controller support it. A node without a declared range supports the present level only. Below the
  level that has registered controllers, the active controller uses the ranges in voters' messages.
* Features that need each other's levels are changed together or in the right order.
* An upgrade may not lower a level, and a downgrade may not raise one. The same level is no change.
* A downgrade drops metadata that the lower level does not have. If information would be lost, the
  request is refused with a list of it, unless the downgrade is declared unsafe.

The replay in ``metadata/state.py`` defines which metadata is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import Final

from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.config import DYNAMIC_CONTROLLER_KEYS
from kraftjbod.core.errors import ErrorCode, OperatingError, StartupError
from kraftjbod.core.ids import MIGRATING_DIR, BrokerId
from kraftjbod.core.metadata_version import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataVersion,
)
from kraftjbod.metadata.records import FeatureLevelRecord, ResourceType
from kraftjbod.metadata.registrations import BrokerRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    FeatureOutcome,
    FeatureUpdate,
    UpdateFeaturesRequestRpc,
    UpdateFeaturesResponseRpc,
)

MAX_NAMED: Final = 10
"""Number of brokers that an error message names; further ones are only counted."""


class UpgradeType(IntEnum):
    """Kinds of feature updates, with Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureControlManager:
    """Decides changes of feature levels, such as ``metadata.version``. Returns records; the replay
    of the records changes the metadata.
    """

    def __init__(
        self,
        *,
        state: MetadataState,
        controllers: Callable[[], Mapping[BrokerId, Mapping[str, tuple[int, int]]]] = dict,
    ) -> None:
        """:param controllers: returns the voters, with the feature ranges in their messages, if
        any.
        """
        self._state = state
        self._controllers = controllers

    def update(
        self, request: UpdateFeaturesRequestRpc
    ) -> ControllerResult[UpdateFeaturesResponseRpc]:
        """Return one outcome per update. There are records only if all updates are possible and the
        request does not ask for a validation only.
        """
        problems = [self._problem(update, request.updates) for update in request.updates]
        is_refused = any(problem is not None for problem in problems)
        response = UpdateFeaturesResponseRpc(
            results=tuple(
                _outcome(update, problem, is_refused)
                for update, problem in zip(request.updates, problems, strict=True)
            )
        )
        if is_refused or request.validate_only:
            return ControllerResult(response=response)
        return ControllerResult(
            records=tuple(
                FeatureLevelRecord(name=update.name, feature_level=update.level)
                # Features that need a metadata.version come before that is lowered.
                for update in sorted(request.updates, key=lambda u: u.name == METADATA_VERSION)
                if self._state.features.get(update.name, 0) != update.level
            ),
            response=response,
        )

    def _problem(
        self, update: FeatureUpdate, updates: Iterable[FeatureUpdate]
    ) -> OperatingError | None:
        try:
            self._require_possible(update, updates)
        except OperatingError as e:
            return e
        return None

    def _require_possible(self, update: FeatureUpdate, updates: Iterable[FeatureUpdate]) -> None:
        if sum(other.name == update.name for other in updates) > 1:
            raise OperatingError(
                f"The request names feature {update.name} more than once.",
                code=ErrorCode.INVALID_REQUEST,
            )
        if update.name not in SUPPORTED_FEATURES:
            raise _invalid(update, "The controller does not know this feature.")
        _require_known(update)
        present, kind = self._level(update.name), UpgradeType(update.upgrade_type)
        if update.level < present and kind is UpgradeType.UPGRADE:
            was = _level_text(update.name, present)
            raise _invalid(update, f"It is {was} already: ask for a downgrade to lower it.")
        if update.level > present and kind is not UpgradeType.UPGRADE:
            was = _level_text(update.name, present)
            raise _invalid(update, f"It is only {was}: ask for an upgrade to raise it.")
        self._require_support(update.name, update.level)
        self._require_consistency(update, updates)
        if update.name != METADATA_VERSION:
            return
        self._require_known_configs(update)
        losses = self._losses(MetadataVersion(update.level))
        if losses and kind is not UpgradeType.UNSAFE_DOWNGRADE:
            raise _invalid(
                update,
                f"The downgrade would lose {'; '.join(losses)}. "
                "An unsafe downgrade ignores that loss.",
            )

    def _level(self, name: str) -> int:
        if name == METADATA_VERSION:
            return self._state.metadata_version
        return self._state.features.get(name, 0)

    def _require_consistency(self, update: FeatureUpdate, updates: Iterable[FeatureUpdate]) -> None:
        """Require that eligible leader replicas are off, or that the resulting ``metadata.version``
        supports them.

        :raises OperatingError: INVALID_UPDATE_VERSION.
        """
        after = {other.name: other.level for other in updates}
        level = after.get(METADATA_VERSION, self._state.metadata_version)
        elr = ELIGIBLE_LEADER_REPLICAS_VERSION
        if not after.get(elr, self._level(elr)) or level >= MetadataVersion.IV_4_3_IV0:
            return
        needed = MetadataVersion.IV_4_3_IV0
        raise _invalid(
            update,
            f"{elr} 1 needs {METADATA_VERSION} {needed.release} ({needed.value}): raise that too, "
            f"or lower {elr} to 0.",
        )

    def _require_support(self, name: str, wanted: int) -> None:
        """Require that all nodes support level ``wanted`` of the feature.

        A broker without a declared range supports the present level only.

        :raises OperatingError: FEATURE_UPDATE_FAILED, naming nodes that do not.
        """
        present = self._level(name)
        without = []
        for broker_id, broker in sorted(self._state.brokers.items()):
            lowest, highest = _range(broker, name, present)
            if not lowest <= wanted <= highest:
                without.append(f"broker {broker_id} supports {lowest} to {highest}")
        for node_id, ranges in sorted(self._ranges_of_controllers().items()):
            lowest, highest = ranges.get(name, (present, present))
            if not lowest <= wanted <= highest:
                supports = f"supports {lowest} to {highest}"
                silent = "did not say what it supports: it is away, or its software is older"
                without.append(f"controller {node_id} {supports if ranges else silent}")
        who = " and controller" if any(one.startswith("c") for one in without) else ""
        if without:
            raise OperatingError(
                f"Not every registered broker{who} supports {name} {wanted}: "
                f"{_bounded(without)}. Upgrade their software first.",
                code=ErrorCode.FEATURE_UPDATE_FAILED,
            )

    def _ranges_of_controllers(self) -> Mapping[BrokerId, Mapping[str, tuple[int, int]]]:
        reported = self._controllers()
        if not self._state.metadata_version.has_controllers:
            return reported
        registered = {
            controller_id: {each.name: (each.lowest, each.highest) for each in found.features}
            for controller_id, found in self._state.controllers.items()
        }
        return {**{voter: {} for voter in reported}, **registered}

    def _require_known_configs(self, update: FeatureUpdate) -> None:
        """Require that the requested ``metadata.version`` knows all stored configurations,
        and access control lists and SCRAM credentials if there are some.

        :raises OperatingError: INVALID_UPDATE_VERSION, naming configurations of controllers.
        """
        wanted = MetadataVersion(update.level)
        if not wanted.has_controllers:
            self._require_no_controller_configs(update)
        if not wanted.has_access_control:
            self._require_no_access_control(update)

    def _require_no_controller_configs(self, update: FeatureUpdate) -> None:
        found = sorted(
            f"{key} of {name or 'all nodes'}"
            for (kind, name), values in self._state.configs.items()
            if kind is ResourceType.BROKER
            for key in values.keys() & DYNAMIC_CONTROLLER_KEYS
        )
        if found:
            raise _invalid(
                update,
                f"It knows no configuration of controllers: delete {_bounded(found)} first, with "
                "kraftjbod-configs.",
            )

    def _require_no_access_control(self, update: FeatureUpdate) -> None:
        """Require that there are no access control lists and no SCRAM credentials.

        An unsafe downgrade is refused too: without its lists the cluster would be open to clients
        that the lists denied.
        """
        if self._state.acls:
            raise _invalid(
                update,
                f"It knows no access control lists: delete all {len(self._state.acls)} first, with "
                "kraftjbod-acls.",
            )
        if self._state.scram_credentials:
            users = sorted({user for _, user in self._state.scram_credentials})
            raise _invalid(
                update,
                f"It knows no SCRAM credentials: delete those of {_bounded(users)} first, with "
                "kraftjbod-configs.",
            )

    def _losses(self, wanted: MetadataVersion) -> list[str]:
        """Return descriptions of the metadata that the level ``wanted`` does not have."""
        present, losses = self._state.metadata_version, list[str]()
        brokers = sorted(self._state.brokers.items())
        if present.has_directories and not wanted.has_directories:
            several = [
                f"broker {broker_id} has {len(broker.known_log_dirs)}"
                for broker_id, broker in brokers
                if len(broker.known_log_dirs) > 1
            ]
            if several:
                losses.append(
                    "the directories of brokers with several, which stop serving then "
                    f"({_bounded(several)})"
                )
            known = sum(
                any(directory != MIGRATING_DIR for directory in partition.directories)
                for _, partition in self._state.partitions()
            )
            if known:
                losses.append(f"the directories of the replicas of {known} partition(s)")
        if present.has_cordoning and not wanted.has_cordoning:
            cordoned = [
                f"broker {broker_id}: {len(broker.cordoned_log_dirs)}"
                for broker_id, broker in brokers
                if broker.cordoned_log_dirs
            ]
            if cordoned:
                losses.append(f"the cordons of directories ({_bounded(cordoned)})")
        if not wanted.has_access_control and self._state.client_quotas:
            count = len(self._state.client_quotas)
            losses.append(f"the quotas of {count} user(s), client id(s) and combinations")
        return losses


def _require_known(update: FeatureUpdate) -> None:
    lowest, highest = SUPPORTED_FEATURES[update.name]
    try:
        if update.name == METADATA_VERSION:
            MetadataVersion.of_level(update.level)
    except StartupError as e:
        raise _invalid(update, f"{e}.") from e
    if not lowest <= update.level <= highest:
        raise _invalid(update, f"Supported: {lowest} to {highest}.")


def _level_text(name: str, level: int) -> str:
    return str(MetadataVersion(level)) if name == METADATA_VERSION else str(level)


def _range(broker: BrokerRegistration, name: str, present: int) -> tuple[int, int]:
    for feature in broker.features:
        if feature.name == name:
            return feature.lowest, feature.highest
    return present, present


def _bounded(items: list[str]) -> str:
    more = len(items) - MAX_NAMED
    named = ", ".join(islice(items, MAX_NAMED))
    return f"{named} and {more} more" if more > 0 else named


def _invalid(update: FeatureUpdate, why: str) -> OperatingError:
    """Return Kafka's error for an invalid level, with the reason appended."""
    return OperatingError(
        f"Invalid update version {update.level} for feature {update.name}. {why}",
        code=ErrorCode.INVALID_UPDATE_VERSION,
    )


def _outcome(
    update: FeatureUpdate, problem: OperatingError | None, is_refused: bool
) -> FeatureOutcome:
    if problem is not None:
        return FeatureOutcome(
            name=update.name, error_code=problem.code, error_message=problem.message
        )
    if is_refused:
        return FeatureOutcome(
            name=update.name,
            error_code=ErrorCode.FEATURE_UPDATE_FAILED,
            error_message="Another update of the same request was refused, so none was made.",
        )
    return FeatureOutcome(name=update.name)
