"""PURE. Describe a controller's configuration: each key, its value and the value's source."""

from __future__ import annotations

from collections.abc import Iterator

from kraftjbod.core.config import DYNAMIC_CONTROLLER_KEYS, ControllerConfig, DynamicControllerConfig
from kraftjbod.core.config_model import ConfigType, config_text, config_types
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.state import Configs
from kraftjbod.protocol.rpc_config_messages import ConfigSource
from kraftjbod.protocol.rpc_controller_messages import ConfigSynonym, DescribedConfig

_DEFAULTS = {
    str(field.alias): None if field.is_required() else field.default
    for field in ControllerConfig.model_fields.values()
}
_TYPES = config_types(ControllerConfig)


def described_settings(
    config: ControllerConfig, settings: DynamicControllerConfig, configs: Configs
) -> tuple[DescribedConfig, ...]:
    """Return each key with its value, source and synonyms, as in DescribeConfigs, sorted by key.

    Passwords and keys have neither value nor synonyms.

    :param config: the controller's file.
    :param settings: the dynamic settings that apply now.
    :param configs: the committed dynamic values.
    """
    in_force = {**config.by_key(), **settings.by_key()}
    return tuple(_described(key, in_force[key], config, configs) for key in sorted(in_force))


def _described(
    key: str, value: object, config: ControllerConfig, configs: Configs
) -> DescribedConfig:
    if _is_secret(key):
        is_given = value is not None
        return DescribedConfig(
            name=key,
            value=None,
            source=ConfigSource.STATIC_BROKER if is_given else ConfigSource.DEFAULT,
            is_read_only=True,
            is_sensitive=True,
        )
    synonyms = tuple(_synonyms(key, config, configs))
    return DescribedConfig(
        name=key,
        value=None if value is None else config_text(value),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_read_only=key not in DYNAMIC_CONTROLLER_KEYS,
        synonyms=synonyms,
    )


def _synonyms(key: str, config: ControllerConfig, configs: Configs) -> Iterator[ConfigSynonym]:
    """Yield the values of a key from all sources, the one that applies first."""
    if key in DYNAMIC_CONTROLLER_KEYS:
        for name, source in (
            (str(config.node_id), ConfigSource.DYNAMIC_BROKER),
            ("", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ):
            text = configs.get((ResourceType.BROKER, name), {}).get(key)
            if text is not None:
                yield ConfigSynonym(name=key, value=text, source=source)
    said = config.by_key()[key]
    if key.replace(".", "_") in config.model_fields_set and said is not None:
        yield ConfigSynonym(name=key, value=config_text(said), source=ConfigSource.STATIC_BROKER)
    default = _DEFAULTS[key]
    if default is not None:
        yield ConfigSynonym(name=key, value=config_text(default), source=ConfigSource.DEFAULT)


def _is_secret(key: str) -> bool:
    """Return whether the values of ``key`` are passwords or keys, which no response contains."""
    return _TYPES[key] is ConfigType.PASSWORD
