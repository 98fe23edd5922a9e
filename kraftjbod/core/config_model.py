"""PURE. Configuration models by Kafka's key names: a field's key is its name with dots for
underscores.

What every model of ``config.py`` and ``topic_config.py`` has in common, and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kraftjbod.core.errors import ConfigError

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
KIB: Final = 1024
MIB: Final = 1024 * KIB
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS

M = TypeVar("M", bound="KeyedModel")


class KeyedModel(BaseModel):
    """Fields by Kafka's key names."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "."),
    )

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Every key that this model knows."""
        return frozenset(str(field.alias) for field in cls.model_fields.values())

    def by_key(self) -> dict[str, Any]:
        """Values by key."""
        fields = type(self).model_fields.items()
        return {str(field.alias): getattr(self, name) for name, field in fields}


def parse_model(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """:raises ConfigError: naming ``source``, and each key that is wrong."""
    for key, value in values.items():
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{source}: {key} contains a NUL character: {value!r}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        problems = "; ".join(
            ": ".join(filter(None, (".".join(map(str, error["loc"])), error["msg"])))
            for error in e.errors()
        )
        raise ConfigError(f"{source}: {problems}") from e


def unknown_keys(model: type[KeyedModel], values: Mapping[str, Any]) -> list[str]:
    """Keys in ``values`` that ``model`` does not know, sorted."""
    return sorted(set(values) - model.keys())


def require_known(values: Mapping[str, Any], *models: type[KeyedModel], source: str) -> None:
    """For keys that a program or a person writes for us now, not ones that a file has had for long.

    :raises ConfigError: for a key that none of ``models`` knows, with the nearest that one does.
    """
    known = frozenset().union(*(model.keys() for model in models))
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{source}: there is no key {key!r}{hint}")


def list_items(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def split_list(value: object) -> object:
    """Kafka writes lists as comma-separated text."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value
