"""PURE. A controller's settings: its file, overridden by dynamic values.

A value for this controller overrides a value for all nodes, which overrides the file (KIP-919).
Dynamic values come from the metadata, so restarted controllers and later leaders use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kraftjbod.core.config import DYNAMIC_CONTROLLER_KEYS, DynamicControllerConfig
from kraftjbod.core.config_model import parse_model, stored_values
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import BrokerId
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.state import Configs

_FIELDS = {key: key.replace(".", "_") for key in DYNAMIC_CONTROLLER_KEYS}


class SettingsInForce:
    """The dynamic settings that apply to one controller, in ``now``: the values of its file,
    overridden by the metadata.

    Every change replaces the object in ``now``. Call ``follow`` with changed configurations.
    """

    def __init__(self, in_file: DynamicControllerConfig, node_id: BrokerId | None = None) -> None:
        """:param node_id: the node whose own values in the metadata apply; None for none."""
        self._in_file = in_file
        self._node_id = node_id
        self.now = settings_in_force(in_file, {}, node_id)

    def follow(self, configs: Configs) -> None:
        found = settings_in_force(self._in_file, configs, self._node_id)
        if found != self.now:
            self.now = found

    def different_from_file(self) -> dict[str, object]:
        """Return the settings that differ from the file: the value in ``now``, by key."""
        in_file = self._in_file.by_key()
        return {key: value for key, value in self.now.by_key().items() if value != in_file[key]}


def settings_in_force(
    in_file: DynamicControllerConfig, configs: Configs, node_id: BrokerId | None
) -> DynamicControllerConfig:
    """Return the file's settings, overridden by the committed values.

    Committed values that cannot be parsed are ignored.
    """
    values = {field: getattr(in_file, field) for field in _FIELDS.values()}
    for name in ("", *(() if node_id is None else (str(node_id),))):
        values.update(_readable(configs.get((ResourceType.BROKER, name), {})))
    return DynamicControllerConfig.model_construct(**values)


def _readable(texts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield field name and parsed value of each dynamic controller key in ``texts`` whose value can
    be parsed."""
    for key, text in stored_values(texts, DynamicControllerConfig).items():
        field = _FIELDS.get(key)
        if field is None:
            continue
        try:
            yield field, getattr(parse_model(DynamicControllerConfig, {key: text}, key), field)
        except ConfigError:
            continue
