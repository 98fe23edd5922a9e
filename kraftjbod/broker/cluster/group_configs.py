"""LOOP. ``GroupConfigs``: the configuration of each group of the consumer protocol (KIP-848).

A group's own values have precedence over the values for all groups in this broker's file, within
the limits in the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import ConfigError, ErrorCode, OperatingError
from kraftjbod.core.group_config import GroupConfig, GroupOverrides
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.rpc_config_messages import AlteredResource

_SET = 0
_DELETE = 1


class GroupConfigs:
    def __init__(self, *, cache: MetadataCache, config: GroupConfig) -> None:
        self._cache = cache
        self._config = config
        self._of_all = config.for_all_groups

    def own(self, group_id: str) -> Mapping[str, str]:
        """Return the values that are set for this group, by key. The group need not exist."""
        return self._cache.state.configs.get((ResourceType.GROUP, group_id), {})

    def in_force(self, group_id: str) -> GroupOverrides:
        own = self.own(group_id)
        return self._config.clamped_overrides(own) if own else self._of_all

    def require_valid(self, resource: AlteredResource) -> None:
        """Check a change against the limits in this broker's file.

        :raises OperatingError: INVALID_CONFIG, with the reason.
        """
        wanted = dict(self.own(resource.name))
        for change in resource.changes:
            if change.operation == _DELETE:
                wanted.pop(change.name, None)
            elif change.operation == _SET and change.value is not None:
                wanted[change.name] = change.value
        try:
            self._config.checked_overrides(wanted, source=f"group {resource.name}")
        except ConfigError as e:
            raise OperatingError(str(e), code=ErrorCode.INVALID_CONFIG) from e
