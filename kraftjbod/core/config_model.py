"""PURE. ``KeyedModel``: base class of the configuration models. Parsing and types of their values.

* A field's key is its name with dots for underscores.
* The key's type, which DescribeConfigs reports, comes from the field's annotation: :data:`Long` is
  Kafka's LONG, and :class:`KafkaType` marks any other type.
* The key's documentation is the docstring of the field, which is read on first use.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError

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
    """Base class of models whose fields are addressed by Kafka's key names."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "."),
    )

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Return all keys of this model."""
        return frozenset(str(field.alias) for field in cls.model_fields.values())

    def by_key(self) -> dict[str, Any]:
        """Return the values of all fields by key."""
        fields = type(self).model_fields.items()
        return {str(field.alias): getattr(self, name) for name, field in fields}


def parse_model(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """Parse and check ``values`` by key. Text is parsed as Kafka's ConfigDef parses it.

    Unknown keys are ignored.

    :param source: origin of the values, for error messages.
    :raises ConfigError: naming ``source`` and each key with a wrong value.
    """
    kinds, given, problems = config_types(model), dict(values), {}
    for key, value in values.items():
        if not isinstance(value, str):
            continue
        if "\0" in value:
            # A key that the model does not know may be a password of one listener.
            is_open = kinds.get(key, ConfigType.PASSWORD) is not ConfigType.PASSWORD
            shown = f": {value!r}" if is_open else ""
            raise ConfigError(f"{source}: {key} contains a NUL character{shown}")
        if key in kinds:
            try:
                given[key] = typed_value(kinds[key], value)
            except ValueError as e:
                problems[key] = f"{key}: {e}"
    try:
        parsed = model.model_validate(given)
    except ValidationError as e:
        for error in e.errors():
            key = ".".join(map(str, error["loc"]))
            problems.setdefault(key, ": ".join(filter(None, (key, error["msg"]))))
    if problems:
        raise ConfigError(f"{source}: {'; '.join(problems.values())}")
    return parsed


def unknown_keys(model: type[KeyedModel], values: Mapping[str, Any]) -> list[str]:
    """Return the keys in ``values`` that ``model`` does not know, sorted."""
    return sorted(set(values) - model.keys())


def require_known(values: Mapping[str, Any], *models: type[KeyedModel], source: str) -> None:
    """Raise an error unless every key is in one of ``models``.

    Used for keys that a program or user sends now. Unknown keys in old files are not errors.

    :raises ConfigError: an unknown key; the message suggests the nearest key.
    """
    known = frozenset[str]().union(*(model.keys() for model in models))
    for key in values:
        if key not in known:
            raise ConfigError(f"{source}: there is no key {key!r}{nearest_hint(key, known)}")


def nearest_hint(key: str, known: Iterable[str]) -> str:
    """Return ``: did you mean KEY?`` with the key of ``known`` that is most similar; "" if none is
    similar.
    """
    near = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def list_items(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def split_list(value: object) -> object:
    """Return the parts of comma-separated text, Kafka's notation for lists, as a tuple without
    empty parts.

    A value that is no text is returned unchanged.
    """
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def config_text(value: object) -> str:
    """Return a value as Kafka writes it in a properties file.

    Lists are joined by commas, endpoints are ``name://host:port`` or ``id@host:port``, and a secret
    is asterisks.
    """
    if isinstance(value, bool):
        return str(value).lower()
    # Some tuple types, such as CleanupPolicy, define their own text form.
    if isinstance(value, tuple) and type(value).__str__ is object.__str__:
        return ",".join(map(_part_text, value))
    return str(value)


def secret_text(value: object) -> str:
    """Return the text of a value, also of a secret one. It must not reach a message."""
    return value.get_secret_value() if isinstance(value, SecretStr) else config_text(value)


def _part_text(part: object) -> str:
    match part:
        case (str(name), str(host), int(port)):
            return f"{name}://{_host_text(host)}:{port}"
        case (int(node_id), str(host), int(port)):
            return f"{node_id}@{_host_text(host)}:{port}"
        case _:
            return str(part)


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- types and documentation of keys -------------------------------------------------------------


class ConfigType(IntEnum):
    """Kafka's ``ConfigDef.Type``, with the numbers used on the wire."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


#: Smallest and largest value of each integer type.
BOUNDS: Final[Mapping[ConfigType, tuple[int, int]]] = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-MAX_INT - 1, MAX_INT),
    ConfigType.LONG: (-MAX_LONG - 1, MAX_LONG),
}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_QUOTED_CHARS: Final = 50


def typed_value(kind: ConfigType, text: str) -> bool | int | float | str:
    """Parse ``text`` as Kafka's ConfigDef does. The text of a list is returned unchanged.

    :raises ValueError: ``text`` is not a value of this type.
    """
    text = text.strip()
    quoted = repr(text[:_MAX_QUOTED_CHARS])
    match kind:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{quoted} is neither true nor false")
            return text.lower() == "true"
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            least, most = BOUNDS[kind]
            if not _WHOLE_NUMBER.fullmatch(text) or not least <= int(text) <= most:
                raise ValueError(
                    f"{quoted} is no {kind.name}: write a whole number from {least} to {most}"
                )
            return int(text)
        case ConfigType.DOUBLE:
            if not _NUMBER.fullmatch(text):
                raise ValueError(f"{quoted} is no number")
            return float(text)
        case _:
            return text


def stored_values(values: Mapping[str, str], *models: type[KeyedModel]) -> dict[str, str]:
    """Return ``values`` from the metadata log in a form that this version can parse.

    Earlier versions accepted numbers beyond the bounds of their type, and words such as ``yes`` for
    booleans. Such a number becomes the nearest bound, because a default could delete records. Such
    a word becomes ``true`` or ``false``. Other invalid text is returned unchanged.
    """
    kinds = {key: kind for model in models for key, kind in config_types(model).items()}
    return {key: _as_stored(kinds.get(key), text) for key, text in values.items()}


def _as_stored(kind: ConfigType | None, text: str) -> str:
    try:
        if kind is ConfigType.BOOLEAN:
            return config_text(_ANY_TRUTH.validate_python(text))
        if kind is not None and kind in BOUNDS:
            least, most = BOUNDS[kind]
            return str(min(max(_ANY_WHOLE_NUMBER.validate_python(text), least), most))
    except ValidationError:
        return text  # The caller parses the text and reports the error.
    return text


_ANY_TRUTH: Final = TypeAdapter(bool)
_ANY_WHOLE_NUMBER: Final = TypeAdapter(int)


class KafkaType(NamedTuple):
    """Marks a field whose key has another type in Kafka than the annotation implies."""

    config_type: ConfigType


#: LONG in Kafka, or a key of this project for bytes on a disk or for retention times.
Long = Annotated[int, KafkaType(ConfigType.LONG)]
Short = Annotated[int, KafkaType(ConfigType.SHORT)]
#: Text in Kafka, which is split here at its commas.
SplitText = Annotated[tuple[str, ...], KafkaType(ConfigType.STRING)]
_TYPES: Final = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    SecretStr: ConfigType.PASSWORD,
}


@cache
def config_types(model: type[KeyedModel]) -> Mapping[str, ConfigType]:
    """Return the type of each key of ``model``."""
    return {
        str(field.alias): _type_of(field.annotation, field.metadata)
        for field in model.model_fields.values()
    }


@cache
def config_meanings(model: type[KeyedModel]) -> Mapping[str, str]:
    """Return the documentation of each key of ``model``, on one line.

    Keys without one are left out.
    """
    meanings: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if kind.__module__.startswith("kraftjbod."):
            meanings |= _docstrings(kind)
    fields = model.model_fields.items()
    return {str(field.alias): meanings[name] for name, field in fields if name in meanings}


def _type_of(annotation: Any, metadata: Iterable[object]) -> ConfigType:
    for mark in metadata:
        if isinstance(mark, KafkaType):
            return mark.config_type
    kind = get_origin(annotation) or annotation
    if kind is Annotated:
        return _type_of(annotation.__origin__, annotation.__metadata__)
    if kind in (Union, UnionType):
        return _type_of(next(one for one in get_args(annotation) if one is not NoneType), ())
    kind = getattr(kind, "__supertype__", kind)  # A NewType's base type.
    if kind in _TYPES:
        return _TYPES[kind]
    is_list = isinstance(kind, type) and issubclass(kind, tuple)
    return ConfigType.LIST if is_list else ConfigType.STRING


def _docstrings(model: type[Any]) -> Mapping[str, str]:
    """Return the docstrings of the fields that ``model`` itself declares, by field name."""
    tree = ast.parse(inspect.getsource(sys.modules[model.__module__]))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    )
    found = {}
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = " ".join(words.split())
    return found
