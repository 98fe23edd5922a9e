"""Generates docs/configuration.md from the configuration models and their fields' docstrings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from kraftjbod.core.config import (
    DYNAMIC_BROKER_KEYS,
    DYNAMIC_CONTROLLER_KEYS,
    BrokerConfig,
    ControllerConfig,
)
from kraftjbod.core.config_model import (
    MAX_INT,
    MAX_LONG,
    ConfigType,
    KeyedModel,
    config_meanings,
    config_types,
)
from kraftjbod.core.dynamic_listener_config import DYNAMIC_STORE_KEYS
from kraftjbod.core.group_config import GroupOverrides
from kraftjbod.core.kafka_keys import ALIASES, REFUSED, WITHOUT_EFFECT
from kraftjbod.core.node_config import DYNAMIC_NODE_KEYS, NodeConfig
from kraftjbod.core.topic_config import BROKER_KEYS, TopicConfig

_HEAD: Final = """# Configuration

`make docs` writes this page from the models in [core/](../kraftjbod/core). A test compares it with them.

A daemon reads one `.properties` file. Keys are Kafka's if Kafka has the key.
An unknown key is ignored and logged (`unknown_config_key`), and `kraftjbod-storage format` names it. A node does not start with a key of a security feature that is not implemented, unless the value is empty.
Kafka's keys without effect, and those that are refused, are [listed below](#keys-of-kafka-without-effect).
Types and their limits are Kafka's: a short is at most 32767, an int 2147483647, a long 9223372036854775807; a boolean is `true` or `false`.
*Dynamic* keys can be changed while brokers and controllers run: `kraftjbod-configs --entity-type brokers` with the id of one node, or `--entity-default` for all. Topic keys need `--entity-type topics`, group keys `--entity-type groups`.
`kraftjbod-local samples --out DIR` writes example files.
"""
_SECTIONS: Final = (
    ("Every daemon", NodeConfig, (), "Keys in the file of a broker or controller."),
    ("Brokers", BrokerConfig, (NodeConfig,), "Keys in a broker's file."),
    ("Controllers", ControllerConfig, (NodeConfig,), "Keys in a controller's file."),
    (
        "Topics",
        TopicConfig,
        (),
        "Keys of one topic. The default is the value of the broker key in brackets, if there is one.",
    ),
    (
        "Groups",
        GroupOverrides,
        (),
        "Keys of one group of the newer protocol (KIP-848). The default is the value of the "
        "broker's key with the prefix `group.`.",
    ),
)
_NUMBERS: Final = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
_KINDS: Final = {
    "bool": "boolean",
    "str": "text",
    "Endpoint": "listener",
    "Voter": "voter",
    "CleanupPolicy": "`delete`, `compact` or both",
    "ThrottledReplicas": "list",
}


def _meanings(model: type[KeyedModel]) -> Mapping[str, str]:
    """Return the docstring of each field by key, with Markdown's quotes around code."""
    return {
        key: re.sub(r"``(.*?)``", r"`\1`", text) for key, text in config_meanings(model).items()
    }


class Key(NamedTuple):
    """A row of the page."""

    name: str
    kind: str
    default: str
    limits: str
    meaning: str

    def row(self) -> str:
        cells = (f"`{self.name}`", self.kind, self.default, self.limits, self.meaning)
        return f"| {' | '.join(cell.replace('|', 'or') for cell in cells)} |"


def keys_of(model: type[KeyedModel], without: Iterable[type[KeyedModel]] = ()) -> Iterable[Key]:
    """Return the keys of ``model`` that no model in ``without`` has."""
    meanings, known = _meanings(model), {name for other in without for name in other.model_fields}
    sets = {broker: topic for topic, brokers in BROKER_KEYS.items() for broker in brokers}
    for name, field in model.model_fields.items():
        if name in known:
            continue
        key = str(field.alias)
        meaning = meanings.get(key, "")
        if not meaning and key in sets:
            meaning = f"Default of the topic key `{sets[key]}`."
        if model is TopicConfig and key in BROKER_KEYS:
            meaning += f" [{', '.join(f'`{broker}`' for broker in BROKER_KEYS[key])}]"
        if model is BrokerConfig and key in DYNAMIC_BROKER_KEYS:
            meaning = f"*Dynamic.* {meaning}"
        if model is NodeConfig and key in DYNAMIC_NODE_KEYS:
            meaning = f"*Dynamic.* {meaning}"
        elif model is NodeConfig and key in DYNAMIC_BROKER_KEYS:
            meaning = f"*Dynamic on brokers.* {meaning}"
        elif model is NodeConfig and key in DYNAMIC_STORE_KEYS:
            meaning = f"*Dynamic on brokers, with the prefix of a listener.* {meaning}"
        if model is ControllerConfig and key in DYNAMIC_CONTROLLER_KEYS:
            meaning = f"*Dynamic.* {meaning}"
        number = config_types(model)[key]
        kind = number.name.lower() if number in _NUMBERS else _kind(field)
        yield Key(key, kind, _default(field), _limits(field), meaning)


def _kind(field: FieldInfo) -> str:
    text = str(field.annotation)
    choices = re.search(r"Literal\[(.*?)\]", text)
    is_list = "tuple[" in text
    if choices:
        kind = ", ".join(f"`{choice.strip(chr(39))}`" for choice in choices[1].split(", "))
    else:
        words = re.findall(r"[A-Za-z0-9_]+", text)
        kind = next((_KINDS[word] for word in words if word in _KINDS), "text")
    return f"list: {kind}" if is_list else kind


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.default
    if value is None or value == () or str(value) == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value in (MAX_INT, MAX_LONG, sys.float_info.max):
        return "no limit"
    return ",".join(map(str, value)) if type(value) is tuple else str(value)


def _limits(field: FieldInfo) -> str:
    words = []
    for limit in field.metadata:
        match limit:
            case Ge(ge=least):
                words.append(f"≥ {least}")
            case Gt(gt=least):
                words.append(f"> {least}")
            case Le(le=most):
                words.append(f"≤ {most}")
    return ", ".join(words)


def page() -> str:
    """Return docs/configuration.md."""
    lines = [_HEAD]
    for title, model, without, intro in _SECTIONS:
        lines += [f"## {title}", "", intro, ""]
        lines += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        lines += [key.row() for key in keys_of(model, without)]
        lines.append("")
    return "\n".join([*lines, *_other_keys()])


def _other_keys() -> Iterator[str]:
    """Yield the rows of Kafka's keys that no model has."""
    yield from ("## Keys of Kafka with another name here", "", "The key on the left is an alias.")
    yield from ("", "| alias | key |", "|---|---|")
    yield from (f"| `{alias}` | `{key}` |" for alias, key in sorted(ALIASES.items()))
    yield from ("", "## Keys of Kafka that are refused", "")
    yield "A node does not start with such a key, unless its value disables the feature."
    yield from ("", "| key | reason |", "|---|---|")
    yield from (f"| `{key}` | {refused.reason} |" for key, refused in sorted(REFUSED.items()))
    yield from ("", "## Keys of Kafka without effect", "")
    yield "Such a key is logged (`config_key_without_effect`) and ignored."
    yield from ("", "| key | reason |", "|---|---|")
    for key, reason in sorted(WITHOUT_EFFECT.items()):
        yield f"| `{key}{'*' if key.endswith('.') else ''}` | {reason} |"
    yield ""
