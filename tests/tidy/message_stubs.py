"""Generates kraftjbod/protocol/messages.pyi from the schemas that the codec uses (``make stubs``).

``python -m tests.tidy.message_stubs`` writes the stubs. test_message_stubs.py compares them.

* A message is a class that contains the classes of its structs, as at run time.
* Decoded arrays are lists; encoders accept tuples, too.
* A field may be None if it is nullable in a supported version, or if None is its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kraftjbod.protocol.kafka_codec import MESSAGE_NAMES, SUPPORTED
from kraftjbod.protocol.schemas.kafka_schema import FieldSchema, StructSchema, load_message
from kraftjbod.protocol.schemas.record_schemas import RECORD_SCHEMAS
from tests.tidy.sources import PACKAGE

STUBS: Final = PACKAGE / "protocol" / "messages.pyi"

_HEAD: Final = """# Written by `make stubs` from Kafka's schemas and our extensions; do not edit.

from collections.abc import Sequence

from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.schemas.kafka_message import Message, Request

def message_classes(name: str) -> dict[str, type[Message]]: ...
"""
_TYPES: Final = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "uuid": "bytes",
    "bytes": "Buffer",
    "records": "Buffer",
}


def stubs() -> str:
    """Return the text of messages.pyi."""
    names = sorted((*MESSAGE_NAMES, *RECORD_SCHEMAS))
    return "\n".join([_HEAD, *(line for name in names for line in _message(name))])


def _message(name: str) -> Iterator[str]:
    schema = load_message(name)
    least, greatest = schema.versions.first, schema.versions.last
    if name not in RECORD_SCHEMAS:
        least, greatest = SUPPORTED[schema.api_key]
    versions = range(least, greatest + 1)
    *inner, outermost = schema.struct.structs()
    base = f"Request[{_answer(name)}]" if name.endswith("Request") else "Message"
    yield f"class {name}({base}):"
    for struct in inner:
        yield f"    class {struct.name}(Message):"
        yield from (f"        {line}" for line in _fields(struct, versions, name))
        yield ""
    yield from (f"    {line}" for line in _fields(outermost, versions, name))
    yield ""


def _answer(request: str) -> str:
    response = request.removesuffix("Request") + "Response"
    # Produce with acks=0 has no response.
    return f"{response} | None" if request == "ProduceRequest" else response


def _fields(struct: StructSchema, versions: range, message: str) -> Iterator[str]:
    for field in struct.fields:
        yield f"{field.name}: {_type(field, versions, message)} = ..."


def _type(field: FieldSchema, versions: range, message: str) -> str:
    # All other types are integers.
    name = f"{message}.{field.struct.name}" if field.struct else _TYPES.get(field.type, "int")
    if field.is_array:
        name = f"Sequence[{name}]"
    may_be_null = any(v in field.nullable and v in field.versions for v in versions)
    return f"{name} | None" if may_be_null or field.default is None else name


if __name__ == "__main__":
    STUBS.write_text(stubs())
