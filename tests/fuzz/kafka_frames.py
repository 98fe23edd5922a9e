"""Generates valid and spoilt requests of Kafka's protocol from its schemas."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol.schemas.kafka_schema import FieldSchema, StructSchema, load_message
from tests.fuzz.mutations import spoilt
from tests.fuzz.values import BITS, Values

EVERY_VERSION: Final = tuple(
    (key, version)
    for key, (least, greatest) in codec.SUPPORTED.items()
    for version in range(least, greatest + 1)
)
_CORPUS: Final = 12
_FRESH: Final = 0.2
_SPOILT: Final = 0.5
_NO_ANSWER: Final = 0
_MAX_CORRELATION_ID: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A request without its length prefix, and the reaction that our codec expects of a daemon."""

    data: bytes
    #: Name of the request's API, for the figures.
    api: str
    is_spoilt: bool
    #: The codec refuses the frame, so that the daemon must close the connection.
    breaks: bool
    has_answer: bool = True
    correlation_id: int = 0
    version: int = -1
    api_key: int = -1

    @property
    def framed(self) -> bytes:
        return struct.pack(">i", len(self.data)) + self.data


class KafkaFrames:
    """Endless source of frames for a broker's listener."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._rng = values.rng
        self._corpus: dict[tuple[int, int], list[bytes]] = {}
        self._count = 0

    def next(self) -> Frame:
        rng = self._rng
        sound = self._sound(rng.choice(EVERY_VERSION))
        if rng.random() >= _SPOILT:
            return judged(sound, is_spoilt=False)
        if rng.random() < 0.1:
            # A valid body behind the header of another API or version.
            key, version = rng.choice(EVERY_VERSION)
            return judged(struct.pack(">hh", key, version) + sound[4:], is_spoilt=True)
        other = self._sound(rng.choice(EVERY_VERSION))
        return judged(spoilt(rng, sound, other), is_spoilt=True)

    def _sound(self, which: tuple[int, int]) -> bytes:
        corpus = self._corpus.setdefault(which, [])
        if len(corpus) < _CORPUS or self._rng.random() < _FRESH:
            fresh = self.encoded(*which)
            if len(corpus) < _CORPUS:
                corpus.append(fresh)
            else:
                corpus[self._rng.randrange(_CORPUS)] = fresh
            return fresh
        self._count = self._count % _MAX_CORRELATION_ID + 1
        known = self._rng.choice(corpus)
        return known[:4] + struct.pack(">i", self._count) + known[8:]

    def encoded(self, api_key: int, version: int) -> bytes:
        """Return a new encoded request. Draw again if this version cannot encode a value."""
        while True:
            self._count = self._count % _MAX_CORRELATION_ID + 1
            body = make(self._values, codec.api_name(api_key) + "Request", version)
            try:
                buffers = codec.encode_request(
                    body, version=version, correlation_id=self._count, client_id="fuzz"
                )
            except LocalProtocolError:
                continue  # A text is too long for an old version.
            return b"".join(buffers)[4:]


def judged(data: bytes, *, is_spoilt: bool) -> Frame:
    """Return the frame with the reaction that our codec expects. The flood checks the daemon's."""
    try:
        header, body = codec.decode_request(data)
    except RemoteProtocolError:
        key = codec.api_key_of(data)
        return Frame(data, codec.api_name(key), is_spoilt, breaks=True)
    is_silent = header.api_key == codec.ApiKey.PRODUCE and body is not None and body.acks == 0
    return Frame(
        data,
        codec.api_name(header.api_key),
        is_spoilt,
        breaks=False,
        has_answer=not is_silent,
        correlation_id=header.correlation_id,
        version=header.api_version,
        api_key=header.api_key,
    )


def make(values: Values, name: str, version: int) -> Any:
    """Return a message of class ``name`` whose fields in ``version`` have drawn values."""
    return _maker(name, version)(values)


@functools.cache
def _maker(name: str, version: int) -> Callable[[Values], Any]:
    return _struct_maker(load_message(name).struct, version, codec.message(name), is_whole=True)


def _struct_maker(
    schema: StructSchema, version: int, outer: Any, *, is_whole: bool = False
) -> Callable[[Values], Any]:
    kind = outer if is_whole else getattr(outer, schema.name)
    fields = [
        (f.name, _field_maker(f, version, outer, schema.name))
        for f in schema.fields
        if version in f.versions
    ]
    return lambda values: kind(**{name: draw(values) for name, draw in fields})


def _field_maker(f: FieldSchema, version: int, outer: Any, owner: str) -> Callable[[Values], Any]:
    one = _one_maker(f, version, outer, owner)
    draw = one
    if f.is_array:

        def draw(values: Values) -> Any:
            return [one(values) for _ in range(values.length())]

    if version in f.nullable:
        inner = draw
        return lambda values: None if values.is_null() else inner(values)
    return draw


def _one_maker(f: FieldSchema, version: int, outer: Any, owner: str) -> Callable[[Values], Any]:
    name = f.name
    if f.struct is not None:
        return _struct_maker(f.struct, version, outer)
    if f.type in BITS:
        signed = not f.type.startswith("u")
        return lambda values: values.integer(name, BITS[f.type], signed=signed)
    match f.type:
        case "bool":
            return lambda values: values.rng.random() < 0.5
        case "float64":
            return lambda values: values.rng.choice((0.0, -1.0, float("nan"), float("inf")))
        case "uuid":
            return lambda values: values.uuid(name)
        case "string":
            return lambda values: values.text(name, owner)
        case "bytes":
            return lambda values: values.blob(name)
        case _:
            return lambda values: values.records()
