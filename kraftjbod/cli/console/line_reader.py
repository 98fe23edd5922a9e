"""PURE. Converts a line of ``kraftjbod-console-producer`` to a record, by Kafka's reader
properties.

``\\t`` and ``\\n`` in a property stand for tab and newline, which are hard to type in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.protocol.records import Record

READER_KEYS: Final = (
    "parse.key",
    "key.separator",
    "parse.headers",
    "headers.delimiter",
    "headers.separator",
    "headers.key.separator",
    "null.marker",
    "ignore.error",
)


class MalformedLineError(KraftJbodError):
    """A line of the input does not have the parts that the properties require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """Converts lines of input to records: splits each line into headers, key and value.

    ``parse_headers`` and ``parse_key``: whether a line has these parts. A part equal to
    ``null_marker`` is null; None: no part is. With ``ignore_error`` a missing separator is no
    error.
    """

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineReader:
        """Create a reader.

        :raises ConfigError: an unknown property, an empty separator, two equal separators of
            headers, or a separator that is the null marker.
        """
        if unknown := sorted(set(properties) - {*READER_KEYS, "topic"}):
            raise ConfigError(f"unknown: {', '.join(unknown)}")
        marker = properties.get("null.marker")
        reader = cls(
            parse_key=is_true(properties.get("parse.key")),
            key_separator=unescape(properties.get("key.separator", "\t")).encode(),
            parse_headers=is_true(properties.get("parse.headers")),
            headers_delimiter=unescape(properties.get("headers.delimiter", "\t")).encode(),
            headers_separator=unescape(properties.get("headers.separator", ",")).encode(),
            headers_key_separator=unescape(properties.get("headers.key.separator", ":")).encode(),
            null_marker=None if marker is None else marker.encode(),
            ignore_error=is_true(properties.get("ignore.error")),
        )
        reader._require_different()
        return reader

    def _require_different(self) -> None:
        """Check that the separators are different and not empty.

        :raises ConfigError: they are not; with the text of Kafka's tool.
        """
        separators = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        for name, other in (
            ("headers.delimiter", "headers.separator"),
            ("headers.delimiter", "headers.key.separator"),
            ("headers.separator", "headers.key.separator"),
        ):
            if separators[name] == separators[other]:
                raise ConfigError(f"{name} and {other} may not be equal")
        for name, separator in {"key.separator": self.key_separator, **separators}.items():
            if separator == self.null_marker:
                raise ConfigError(f"null.marker and {name} may not be equal")
            if not separator:
                raise ConfigError(f"{name} may not be empty")

    def record(self, line: bytes, number: int, timestamp_ms: int) -> Record:
        """Convert a line to a record.

        :param number: number of the line, for the error.
        :param timestamp_ms: timestamp of the record.
        :raises MalformedLineError: a separator of headers, of a header or of the key is missing and
            ``ignore.error`` is not set, or the name of a header is the null marker.
        """
        headers: bytes | None = None
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            headers, rest = self._cut(
                rest, self.headers_delimiter, "headers delimiter", number, line
            )
        if self.parse_key:
            key, rest = self._cut(rest, self.key_separator, "key separator", number, line)
        return Record(
            key=self._or_null(key),
            value=self._or_null(rest),
            timestamp_ms=timestamp_ms,
            headers=tuple(self._headers(headers, number)),
        )

    def _cut(
        self, rest: bytes, at: bytes, name: str, number: int, line: bytes
    ) -> tuple[bytes | None, bytes]:
        part, separator, after = rest.partition(at)
        if separator:
            return part, after
        if self.ignore_error:
            return None, rest
        text = line.decode(errors="replace")
        raise MalformedLineError(f"No {name} found on line number {number}: '{text}'")

    def _headers(self, headers: bytes | None, number: int) -> Iterator[tuple[str, bytes | None]]:
        if headers is None or headers == self.null_marker:
            return
        # Java's split ignores empty parts at the end.
        pairs = re.sub(b"(?:" + re.escape(self.headers_separator) + b")+$", b"", headers)
        for pair in pairs.split(self.headers_separator):
            name, separator, value = pair.partition(self.headers_key_separator)
            text = name.decode(errors="replace")
            if not separator:
                if not self.ignore_error:
                    raise MalformedLineError(
                        f"No header key separator found in pair '{text}' on line number {number}"
                    )
                yield text, None
            elif name == self.null_marker:
                raise MalformedLineError(
                    f"Header keys should not be equal to the null marker '{text}' as they can't "
                    "be null"
                )
            else:
                yield text, self._or_null(value)

    def _or_null(self, value: bytes | None) -> bytes | None:
        return None if value == self.null_marker else value


def is_true(text: str | None) -> bool:
    """Return whether ``text`` is ``true`` in any case, ignoring white space around it.

    Kafka's LineMessageReader has the same rule. False if None.
    """
    return text is not None and text.strip().lower() == "true"


def unescape(text: str) -> str:
    r"""Replace ``\t`` and ``\n``, as typed in a shell, by tab and newline."""
    return text.replace("\\t", "\t").replace("\\n", "\n")
