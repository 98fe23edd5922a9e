"""PURE. Compiles message schemas to Python: one reader and one writer per struct and version.

The generated source is readable (``kafka_codec.source_of``). Its conventions:

* ``read_X(b, p, end, q) -> (message, p)``: ``b`` is a memoryview of the frame and ``p`` the
  position. The struct must end at ``end`` or before. ``q[0]`` is the number of array elements that
  the frame may still claim. Every claimed length is compared with ``end - p`` before memory is
  allocated for it.
* ``write_X(c, m, k)``: appends chunks of bytes to ``c``. ``k`` collects the indexes in ``c`` of
  records, which must stay separate buffers.
* Adjacent fields of fixed size are read and written by one ``struct`` call.

Malformed bytes raise ``RemoteProtocolError``, ``struct.error``, ``IndexError`` or
``UnicodeDecodeError``; kafka_codec.py converts them to ``RemoteProtocolError``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.protocol.schemas.kafka_message import Message
from kraftjbod.protocol.schemas.kafka_schema import FieldSchema, MessageSchema, StructSchema

_FIXED_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_MAX_VARINT_SHIFT: Final = 28
#: An empty section of tagged fields.
NO_TAGS: Final = b"\x00"


# --- helpers for generated code -----------------------------------------------------------------


def long_uvarint(b: memoryview, p: int, first: int) -> tuple[int, int]:
    """Decode an unsigned varint of several bytes; return the value and the position after it.

    :param p: position of the second byte.
    :param first: the first byte, whose high bit is set.
    :raises RemoteProtocolError: the varint is too long, or exceeds an int32.
    :raises IndexError: ``b`` ends within the varint.
    """
    value = first & 0x7F
    shift = 7
    while True:
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise RemoteProtocolError("a varint is longer than 5 bytes")
    if value > 0x7FFFFFFF:
        raise RemoteProtocolError(f"a length of {value} is out of range")
    return value, p


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def short(field: str) -> NoReturn:
    raise RemoteProtocolError(f"{field} claims more bytes than there are")


def null(field: str) -> NoReturn:
    raise RemoteProtocolError(f"{field} may not be null")


def too_many(field: str) -> NoReturn:
    raise RemoteProtocolError(f"{field} brings more array elements than one frame may hold")


def untrue_size(field: str) -> NoReturn:
    raise RemoteProtocolError(f"tagged field {field} does not fill its size")


def not_in_version(field: str, version: int) -> NoReturn:
    raise LocalProtocolError(f"{field} cannot be said in version {version}")


_NAMESPACE: Final[dict[str, Any]] = {
    "V": [uvarint(n) for n in range(128)],
    "long_uvarint": long_uvarint,
    "new": object.__new__,
    "not_in_version": not_in_version,
    "null": null,
    "pack_h": struct.Struct(">h").pack,
    "pack_i": struct.Struct(">i").pack,
    "short": short,
    "struct": struct,
    "too_many": too_many,
    "unpack_from": struct.unpack_from,
    "unpack_h": struct.Struct(">h").unpack_from,
    "unpack_i": struct.Struct(">i").unpack_from,
    "untrue_size": untrue_size,
    "uvarint": uvarint,
}


def _suffix(fmt: str) -> str:
    """Return the struct format ``fmt`` as a part of a Python name."""
    return fmt.replace("?", "t")


# --- readers and writers ------------------------------------------------------------------------


class Compiler:
    """Generates Python functions that read and write one message of the schema in one version."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self._schema = schema
        self._version = version
        self._flexible = version in schema.flexible
        self._lines: list[str] = []
        self._formats: set[str] = set()

    def source(self) -> str:
        if not self._lines:
            for s in self._present(self._schema.struct):
                self._reader(s)
                self._writer(s)
        return "\n".join(self._lines) + "\n"

    def compile(self, classes: dict[str, type[Message]]) -> dict[str, Any]:
        """Return a namespace with the functions ``read_X`` and ``write_X`` of every struct X.

        :param classes: the message classes by name of their struct.
        """
        code = compile(self.source(), f"<{self._schema.name} v{self._version}>", "exec")
        namespace = {**_NAMESPACE, **classes}
        for fmt in self._formats:
            compiled = struct.Struct(">" + fmt)
            namespace[f"unpack_{_suffix(fmt)}"] = compiled.unpack_from
            namespace[f"pack_{_suffix(fmt)}"] = compiled.pack
        exec(code, namespace)  # noqa: S102 - source made from packaged schemas only
        return namespace

    def _present(self, outer: StructSchema) -> Iterator[StructSchema]:
        for f in outer.fields:
            if f.struct is not None and self._version in f.versions:
                yield from self._present(f.struct)
        yield outer

    def _plain(self, s: StructSchema) -> list[FieldSchema]:
        return [
            f for f in s.fields if self._version in f.versions and self._version not in f.tagged
        ]

    def _tagged(self, s: StructSchema) -> list[FieldSchema]:
        tagged = [f for f in s.fields if self._version in f.versions and self._version in f.tagged]
        return sorted(tagged, key=lambda f: f.tag)

    def _absent(self, s: StructSchema) -> list[FieldSchema]:
        return [f for f in s.fields if self._version not in f.versions]

    def _runs(self, fields: Sequence[FieldSchema]) -> Iterator[list[FieldSchema]]:
        """Yield the fields in groups: adjacent fields of fixed size together, any other field
        alone."""
        run: list[FieldSchema] = []
        for f in fields:
            if f.type in _FIXED_FORMATS and not f.is_array:
                run.append(f)
                continue
            if run:
                yield run
                run = []
            yield [f]
        if run:
            yield run

    def _format(self, fields: Sequence[FieldSchema]) -> str:
        fmt = "".join(_FIXED_FORMATS[f.type] for f in fields)
        self._formats.add(fmt)
        return fmt

    def _min_bytes(self, f: FieldSchema) -> int:
        """Return the minimum size of an element of ``f`` in bytes.

        The result is at least 1, so that the size of the frame bounds the claimed number of
        elements.
        """
        if f.type in _FIXED_FORMATS:
            return struct.calcsize(">" + _FIXED_FORMATS[f.type])
        if f.struct is None:
            return 1 if self._flexible else 2
        size = 1 if self._flexible else 0
        for inner in self._plain(f.struct):
            if inner.is_array:
                size += 1 if self._flexible else 4
            else:
                size += 1 if self._may_lack(inner) else self._min_bytes(inner)
        assert size > 0, f"{f.name} has empty elements in version {self._version}"
        return size

    def _may_lack(self, f: FieldSchema) -> bool:
        """Return whether ``f`` is a nullable struct, which starts with a byte that is negative for
        null."""
        return f.struct is not None and not f.is_array and self._version in f.nullable

    def _put(self, depth: int, *lines: str) -> None:
        self._lines.extend("    " * depth + line if line else "" for line in lines)

    # --- readers

    def _reader(self, s: StructSchema) -> None:
        self._put(0, f"def read_{s.name}(b, p, end, q):")
        self._put(1, f"m = new({s.name})")
        for run in self._runs(self._plain(s)):
            if run[0].type in _FIXED_FORMATS and not run[0].is_array:
                self._read_fixed(1, run)
            else:
                self._read_field(1, run[0])
        for f in [*self._absent(s), *self._tagged(s)]:
            self._put(1, f"m.{f.name} = {[] if f.default == () else f.default!r}")
        if self._flexible:
            self._read_tags(s)
        self._put(1, "return m, p", "")

    def _read_fixed(self, depth: int, fields: Sequence[FieldSchema]) -> None:
        fmt = self._format(fields)
        targets = ", ".join(f"m.{f.name}" for f in fields)
        self._put(depth, f"{targets}, = unpack_{_suffix(fmt)}(b, p)")
        self._put(depth, f"p += {struct.calcsize('>' + fmt)}")

    def _read_uvarint(self, depth: int, name: str) -> None:
        self._put(depth, f"{name} = b[p]", "p += 1")
        self._put(depth, f"if {name} > 127: {name}, p = long_uvarint(b, p, {name})")

    def _read_length(self, depth: int, name: str, *, wide: bool) -> None:
        """Generate code that sets the variable ``name`` to a length; -1 means null.

        :param wide: whether the length has four bytes instead of two in versions that are not
            flexible.
        """
        if self._flexible:
            self._read_uvarint(depth, name)
            self._put(depth, f"{name} -= 1")
        else:
            fmt, size = ("i", 4) if wide else ("h", 2)
            self._put(depth, f"{name}, = unpack_{fmt}(b, p)", f"p += {size}")

    def _read_field(self, depth: int, f: FieldSchema) -> None:
        if f.is_array:
            self._read_array(depth, f)
        elif f.type in _FIXED_FORMATS:
            self._read_fixed(depth, [f])
        elif f.struct is not None:
            if self._may_lack(f):
                self._put(depth, "is_null = b[p] > 127", "p += 1")
                self._put(depth, f"if is_null: m.{f.name} = None", "else:")
                depth += 1
            self._put(depth, f"m.{f.name}, p = read_{f.struct.name}(b, p, end, q)")
        else:
            self._read_bytes(depth, f, f"m.{f.name} =")

    def _read_bytes(self, depth: int, f: FieldSchema, target: str) -> None:
        """Generate code that reads a string or bytes; ``target`` is the left side of the
        assignment."""
        self._read_length(depth, "n", wide=f.type != "string")
        is_null = "None" if self._version in f.nullable else f"null({f.name!r})"
        value = "str(b[p:e], 'utf-8')" if f.type == "string" else "b[p:e]"
        self._put(depth, f"if n < 0: {target} {is_null}", "else:")
        self._put(depth + 1, "e = p + n", f"if e > end: short({f.name!r})")
        self._put(depth + 1, f"{target} {value}", "p = e")

    def _read_array(self, depth: int, f: FieldSchema) -> None:
        self._read_length(depth, "n", wide=True)
        is_null = "None" if self._version in f.nullable else f"null({f.name!r})"
        self._put(depth, f"if n < 0: m.{f.name} = {is_null}", "else:")
        depth += 1
        size = self._min_bytes(f)
        self._put(depth, f"if n * {size} > end - p: short({f.name!r})")
        self._put(depth, "q[0] -= n", f"if q[0] < 0: too_many({f.name!r})")
        if f.type == "uuid":
            self._put(depth, f"m.{f.name} = [bytes(b[i:i + 16]) for i in range(p, p + 16 * n, 16)]")
            self._put(depth, "p += 16 * n")
        elif f.type in _FIXED_FORMATS:
            fmt = _FIXED_FORMATS[f.type]
            self._put(depth, f"m.{f.name} = list(unpack_from(f'>{{n}}{fmt}', b, p))")
            self._put(depth, f"p += {size} * n")
        else:
            self._put(depth, f"r = m.{f.name} = []", "for _ in range(n):")
            if f.struct is not None:
                self._put(depth + 1, f"o, p = read_{f.struct.name}(b, p, end, q)")
            else:
                self._read_bytes(depth + 1, f, "o =")
            self._put(depth + 1, "r.append(o)")

    def _read_tags(self, s: StructSchema) -> None:
        self._read_uvarint(1, "tags")
        # Unknown tags are counted as well: each takes two bytes of the frame and some time.
        self._put(1, "q[0] -= tags", f"if q[0] < 0: too_many('tags of {s.name}')")
        self._put(1, "for _ in range(tags):")
        self._read_uvarint(2, "tag")
        self._read_uvarint(2, "size")
        self._put(2, "stop = p + size", f"if stop > end: short('a tagged field of {s.name}')")
        keyword = "if"
        for f in self._tagged(s):
            self._put(2, f"{keyword} tag == {f.tag}:")
            self._put(3, f"if read_{s.name}_{f.name}(m, b, p, stop, q) != stop:")
            self._put(4, f"untrue_size({f.name!r})")
            keyword = "elif"
        self._put(2, "p = stop")
        for f in self._tagged(s):
            self._later_tag_reader(s, f)

    def _later_tag_reader(self, s: StructSchema, f: FieldSchema) -> None:
        """Generate a function that reads a tagged field, before the reader that calls it."""
        lines, self._lines = self._lines, []
        self._put(0, f"def read_{s.name}_{f.name}(m, b, p, end, q):")
        self._read_field(1, f)
        self._put(1, "return p", "")
        self._lines += lines

    # --- writers

    def _writer(self, s: StructSchema) -> None:
        for f in self._tagged(s):
            self._put(0, f"def write_{s.name}_{f.name}(c, m, k):")
            self._put(1, "a = c.append")
            self._write_field(1, f)
            self._put(1, "")
        self._put(0, f"def write_{s.name}(c, m, k):")
        self._put(1, "a = c.append")
        for f in self._absent(s):
            if not f.ignorable:
                said = self._differs_from_default(f)
                self._put(1, f"if {said}: not_in_version({f.name!r}, {self._version})")
        for run in self._runs(self._plain(s)):
            if run[0].type in _FIXED_FORMATS and not run[0].is_array:
                self._write_fixed(1, run)
            else:
                self._write_field(1, run[0])
        if self._flexible:
            self._write_tags(s)
        self._put(1, "")

    def _differs_from_default(self, f: FieldSchema) -> str:
        """Return the Python condition that field ``f`` of ``m`` differs from its default."""
        if f.default == ():
            return f"m.{f.name}"
        if f.struct is not None and not f.is_array:
            return f"m.{f.name} is not None and m.{f.name} != {f.struct.name}()"
        if f.default is None:
            return f"m.{f.name} is not None"
        return f"m.{f.name} != {f.default!r}"

    def _write_fixed(self, depth: int, fields: Sequence[FieldSchema]) -> None:
        values = ", ".join(f"m.{f.name}" for f in fields)
        self._put(depth, f"a(pack_{_suffix(self._format(fields))}({values}))")

    def _write_uvarint(self, depth: int, expression: str) -> None:
        self._put(depth, f"n = {expression}", "a(V[n] if n < 128 else uvarint(n))")

    def _write_length(self, depth: int, value: str, *, wide: bool) -> None:
        if self._flexible:
            self._write_uvarint(depth, f"len({value}) + 1")
        else:
            self._put(depth, f"a(pack_{'i' if wide else 'h'}(len({value})))")

    def _write_null(self, depth: int, *, wide: bool) -> None:
        null_bytes = b"\x00" if self._flexible else b"\xff" * (4 if wide else 2)
        self._put(depth, f"a({null_bytes!r})")

    def _write_field(self, depth: int, f: FieldSchema) -> None:
        if f.type in _FIXED_FORMATS and not f.is_array:
            self._write_fixed(depth, [f])
            return
        if f.struct is not None and not f.is_array:
            if self._may_lack(f):
                self._put(depth, f"if m.{f.name} is None: a(b'\\xff')", "else:")
                depth += 1
                self._put(depth, "a(b'\\x01')")
            self._put(depth, f"write_{f.struct.name}(c, m.{f.name}, k)")
            return
        self._put(depth, f"s = m.{f.name}")
        if self._version in f.nullable:
            self._put(depth, "if s is None:")
            self._write_null(depth + 1, wide=f.is_array or f.type != "string")
            self._put(depth, "else:")
            depth += 1
        if f.is_array:
            self._write_array(depth, f)
        else:
            self._write_bytes(depth, f)

    def _write_bytes(self, depth: int, f: FieldSchema) -> None:
        """Generate code that writes the string or bytes in the variable ``s``."""
        if f.type == "string":
            self._put(depth, "s = s.encode()")
        self._write_length(depth, "s", wide=f.type != "string")
        if f.type == "records":
            self._put(depth, "k.append(len(c))")
        self._put(depth, "a(s)")

    def _write_array(self, depth: int, f: FieldSchema) -> None:
        """Generate code that writes the array in the variable ``s``; its elements may be encoded
        bytes."""
        self._write_length(depth, "s", wide=True)
        if f.type == "uuid":
            self._put(depth, "for o in s: a(struct.pack('16s', o))")
        elif f.type in _FIXED_FORMATS:
            self._put(depth, f"a(struct.pack(f'>{{len(s)}}{_FIXED_FORMATS[f.type]}', *s))")
        elif f.struct is not None:
            self._put(depth, "for o in s:")
            self._put(depth + 1, "if type(o) is bytes: a(o)")
            self._put(depth + 1, f"else: write_{f.struct.name}(c, o, k)")
        else:
            self._put(depth, "for s in s:")
            self._write_bytes(depth + 1, f)

    def _write_tags(self, s: StructSchema) -> None:
        tagged = self._tagged(s)
        if not tagged:
            self._put(1, "a(b'\\x00')")
            return
        self._put(1, "t = []")
        for f in tagged:
            self._put(1, f"if {self._differs_from_default(f)}:")
            self._put(2, "d = []", f"write_{s.name}_{f.name}(d, m, k)")
            self._put(2, f"t.append(({uvarint(f.tag)!r}, b''.join(d)))")
        self._write_uvarint(1, "len(t)")
        self._put(1, "for tag, d in t:")
        self._put(2, "a(tag)")
        self._write_uvarint(2, "len(d)")
        self._put(2, "a(d)")
