"""PURE. Messages as Python objects: one class per struct of a schema, with the fields of all
versions.

kafka_compiler.py generates the functions that encode and decode them, per version.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

from kraftjbod.protocol.schemas.kafka_schema import MessageSchema, StructSchema

#: Module in which the message classes appear.
_MESSAGES: Final = "kraftjbod.protocol.messages"


@dataclass_transform(kw_only_default=True, eq_default=False)
class Message:
    """A request, a response or a struct inside one, with Kafka's field names in snake_case.

    Classes are generated from the schemas with the fields of all versions. Type checkers find the
    fields in messages.pyi. A tagged struct that was not received is None.
    """

    __slots__ = ()
    schema: ClassVar[StructSchema]

    def __init__(self, **fields: Any) -> None:
        """Set the fields by name; fields that are not given get their defaults.

        The first call replaces this method by a generated one, because most structs are only
        decoded.
        """
        kind = type(self)
        namespace: dict[str, Any] = {}
        exec(constructor_source(kind.schema), namespace)  # noqa: S102 - made from schemas only
        kind.__init__ = namespace["__init__"]  # type: ignore[method-assign]  # once, see above
        kind.__init__(self, **fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names: tuple[str, ...] = type(self).__slots__
        return all(getattr(self, n) == getattr(other, n) for n in names)

    __hash__ = None  # type: ignore[assignment]  # mutable, like a list

    def __repr__(self) -> str:
        names: tuple[str, ...] = type(self).__slots__
        fields = ", ".join(f"{n}={getattr(self, n)!r}" for n in names)
        return f"{type(self).__name__}({fields})"


Answer_co = TypeVar("Answer_co", covariant=True)


class Request(Message, Generic[Answer_co]):
    """A request; the type parameter is the class of its response."""

    __slots__ = ()


def build_classes(schema: MessageSchema) -> dict[str, type[Message]]:
    """Create one class per struct of ``schema``; return them by name of their struct.

    Classes of inner structs are also attributes of the message's class.
    """
    base = Request if schema.name.endswith("Request") else Message
    outermost = _class_of(schema.struct, base)
    classes = {schema.name: outermost}
    for struct_schema in schema.struct.structs():
        if struct_schema is not schema.struct:
            inner = classes[struct_schema.name] = _class_of(struct_schema, Message)
            inner.__qualname__ = f"{schema.name}.{struct_schema.name}"
            setattr(outermost, struct_schema.name, inner)
    return classes


def _class_of(s: StructSchema, base: type[Message]) -> type[Message]:
    body = {"__slots__": tuple(f.name for f in s.fields), "schema": s, "__module__": _MESSAGES}
    kind: type[Message] = type(s.name, (base,), body)
    return kind


def constructor_source(s: StructSchema) -> str:
    lines = [
        f"def __init__(self, *, {', '.join(f'{f.name}={f.default!r}' for f in s.fields)}):",
        # Each message needs a new list as default.
        *(f"    if {f.name} == (): {f.name} = []" for f in s.fields if f.default == ()),
        *(f"    self.{f.name} = {f.name}" for f in s.fields),
    ]
    return "\n".join(lines) + "\n"
