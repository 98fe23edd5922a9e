"""PURE. The directories of a broker that its dynamic configuration cordons (KIP-1066).

If ``cordoned.log.dirs`` is set for a broker, or for all brokers, the controller uses that value and
ignores the cordons in the broker's requests. So a restart, a late heartbeat or a dead broker cannot
restore a cordon that was lifted. The broker's own file, which only the broker knows, counts if no
dynamic value is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftjbod.core.config import CORDONED_LOG_DIRS
from kraftjbod.core.config_model import list_items
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.registrations import BrokerRegistration

Configs = Mapping[tuple[ResourceType, str], Mapping[str, str]]
"""Committed values by resource, as in the metadata."""


def dynamic_cordons(configs: Configs, broker: BrokerRegistration) -> tuple[DirectoryId, ...] | None:
    """Return the sorted ids of the directories of ``broker`` that dynamic configuration cordons.

    None if no dynamic value is set. Paths that the broker did not register are ignored: they may be
    its offline directories.
    """
    text = dynamic_value(configs, broker.broker_id)
    return None if text is None else cordoned_ids(broker, list_items(text))


def dynamic_value(configs: Configs, broker_id: BrokerId) -> str | None:
    """Return ``cordoned.log.dirs`` as set for the broker, or else for all brokers; None if
    unset."""
    for name in (str(broker_id), ""):
        text = configs.get((ResourceType.BROKER, name), {}).get(CORDONED_LOG_DIRS)
        if text is not None:
            return text
    return None


def cordoned_ids(broker: BrokerRegistration, paths: Iterable[str]) -> tuple[DirectoryId, ...]:
    """Return the sorted ids of the directories of ``broker`` whose path is in ``paths``.

    All directories, if ``paths`` contains ``*``.
    """
    wanted = frozenset(paths)
    return tuple(
        directory_id
        for directory_id in sorted(broker.known_log_dirs)
        if ALL_LOG_DIRS in wanted or broker.log_dir_paths.get(directory_id) in wanted
    )
