"""PURE. Kafka's message schemas as Python objects: the fields of each message, and their versions.

The schemas are Kafka's JSON files, which the kafka-python package contains. They are loaded as
resources, without importing or running code of that package. kafka_extensions.py adds tagged fields
to some structs, and some messages. kafka_compiler.py generates the code that encodes and decodes
the messages of a schema.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kraftjbod.protocol.schemas.consumer_group_schemas import consumer_group_message
from kraftjbod.protocol.schemas.kafka_extensions import own_fields, own_message
from kraftjbod.protocol.schemas.record_schemas import record_schema

_PACKAGE: Final = "kafka"
_FOLDER: Final = "protocol/schemas/resources"

PRIMITIVES: Final = frozenset(
    {
        "bool",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "float64",
        "uuid",
        "string",
        "bytes",
        "records",
    }
)

_LAST_VERSION: Final = 32767
_WORD_BREAK: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_COMMENT_LINE: Final = re.compile(r"^\s*//.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included; empty if ``first > last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse Kafka's text of a range: ``"3-12"``, ``"9+"``, ``"4"`` or ``"none"``."""
        if text == "none":
            return NO_VERSIONS
        first, dash, last = text.partition("-")
        if dash:
            return cls(int(first), int(last))
        if text.endswith("+"):
            return cls(int(text[:-1]), _LAST_VERSION)
        return cls(int(text), int(text))


NO_VERSIONS: Final = Versions(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """One field of a struct.

    ``type`` is one of :data:`PRIMITIVES`, or ``"struct"`` with the schema in ``struct``.
    ``default`` is a Python value: None for null and for a struct, ``()`` for an array.
    ``versions``, ``nullable`` and ``tagged`` are the versions of the message in which the field
    exists, may be null, and is a tagged field. ``ignorable``: other versions drop a value that is
    not the default, instead of an error.
    """

    name: str
    type: str
    is_array: bool
    struct: StructSchema | None
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    ignorable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StructSchema:
    """A named sequence of fields; ``name`` is unique within its message."""

    name: str
    fields: tuple[FieldSchema, ...]

    def structs(self) -> Iterator[StructSchema]:
        """Yield all inner structs, each once and the innermost first, and then this struct."""
        seen: set[str] = set()
        for field in self.fields:
            for struct in () if field.struct is None else field.struct.structs():
                if struct.name not in seen:
                    seen.add(struct.name)
                    yield struct
        yield self


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSchema:
    """Schema of a request, a response, or the key or value of a record.

    ``api_key`` is the record type for a key or value, and -1 if the message has neither.
    ``flexible`` are the versions with compact lengths and tagged fields (KIP-482).
    """

    name: str
    api_key: int
    struct: StructSchema
    versions: Versions
    flexible: Versions


@functools.cache
def load_message(name: str) -> MessageSchema:
    """Return the schema of the message ``name``, for example ``"FetchRequest"``.

    :raises KeyError: the name is unknown.
    """
    document = (
        own_message(name)
        or consumer_group_message(name)
        or record_schema(name)
        or _kafka_document(name)
    )
    shared = {struct["name"]: struct["fields"] for struct in document.get("commonStructs", ())}
    return MessageSchema(
        name=name,
        api_key=document.get("apiKey", -1),
        struct=_Parser(name, shared).struct(name, document["fields"]),
        versions=Versions.parse(document["validVersions"]),
        flexible=Versions.parse(document["flexibleVersions"]),
    )


def _kafka_document(name: str) -> Mapping[str, Any]:
    resource = _package_root() / _FOLDER / f"{name}.json"
    if not resource.is_file():
        raise KeyError(name)
    document: Mapping[str, Any] = json.loads(_COMMENT_LINE.sub("", resource.read_text("utf-8")))
    return document


@functools.cache
def _package_root() -> Any:
    # Unlike an import, find_spec of a top-level package runs none of its code. An import would
    # load a complete client library in every daemon.
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "the kafka-python package, which ships the schemas, is not installed"
    return importlib.resources.files(importlib.util.module_from_spec(spec))


class _Parser:
    """Parses the fields of one message.

    :param shared: the fields of the message's common structs, by name.
    """

    def __init__(self, message: str, shared: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._message = message
        self._shared = shared

    def struct(self, name: str, fields: Sequence[Mapping[str, Any]]) -> StructSchema:
        parsed = tuple(self._field(field) for field in (*fields, *own_fields(self._message, name)))
        return StructSchema(name=name, fields=parsed)

    def _field(self, field: Mapping[str, Any]) -> FieldSchema:
        type_name: str = field["type"]
        is_array = type_name.startswith("[]")
        element = type_name.removeprefix("[]")
        struct = None
        if element not in PRIMITIVES:
            struct = self.struct(element, field.get("fields") or self._shared[element])
        kind = element if struct is None else "struct"
        return FieldSchema(
            name=_WORD_BREAK.sub("_", field["name"]).lower(),
            type=kind,
            is_array=is_array,
            struct=struct,
            versions=Versions.parse(field["versions"]),
            nullable=Versions.parse(field.get("nullableVersions", "none")),
            tagged=Versions.parse(field.get("taggedVersions", "none")),
            tag=field.get("tag", -1),
            default=_default_value(kind, is_array, field.get("default")),
            ignorable=field.get("ignorable", False),
        )


def _default_value(type_name: str, is_array: bool, text: Any) -> Any:
    """Return the default of the schema, or Kafka's default for the type, as a Python value."""
    if text == "null":
        return None
    if is_array:
        return ()
    match type_name:
        case "string":
            return text or ""
        case "bytes":
            return b""
        case "records" | "struct":
            return None
        case "uuid":
            return bytes(16)
        case "bool":
            return str(text).lower() == "true"
        case "float64":
            return float(text or 0)
        case _:
            return int(str(text), 0) if text not in (None, "") else 0
