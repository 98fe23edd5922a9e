"""Generates valid and spoilt RPC requests and responses of brokers and controllers from models."""

from __future__ import annotations

import enum
import functools
import random
import types
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
from pydantic import BaseModel

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.ids import Uuid
from kraftjbod.protocol import rpc_codec
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from tests.fuzz.kafka_frames import Frame
from tests.fuzz.mutations import spoilt
from tests.fuzz.values import Values

REQUESTS: Final = tuple(rpc_codec.REQUESTS.values())
_SPOILT: Final = 0.5
_MAX_CORRELATION_ID: Final = 0xFFFFFFFF
_FLOATS: Final = (0.0, 1.0, 1024.0, 0.5, -1.0, 1e300, float("inf"), float("nan"))
_ODD: Final[tuple[object, ...]] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    0.5,
    float("nan"),
    "",
    "x" * 70_000,
    b"",
    b"\0" * 15,
    b"\0" * 16,
    [],
    [None],
    [[]] * 300,
    {},
    {"": 0},
    {0: [0]},
    [[[[[[[[]]]]]]]],
)


class RpcFrames:
    """Endless source of frames for a controller's listener."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._rng = values.rng
        self._count = 0

    def next(self) -> Frame:
        rng = self._rng
        self._count = (self._count + 1) & _MAX_CORRELATION_ID
        kind = rng.choice(REQUESTS)
        body = self.body(kind)
        envelope = [0, self._count, kind.api, rng.randint(0, kind.version), body]
        # A spoilt request with the id of a live broker might take effect and end the run.
        is_spoilt = (
            rng.random() < _SPOILT and body.get("broker_id") not in self._values.world.brokers
        )
        if is_spoilt and rng.random() < 0.6:
            _put_odd(rng, envelope)
        data: bytes = msgpack.packb(envelope)
        if is_spoilt and rng.random() < 0.5:
            data = spoilt(rng, data, msgpack.packb([0, 1, kind.api, 0, self.body(kind)]))
        return judged(data, is_spoilt=is_spoilt)

    def body(self, kind: type[RpcRequest]) -> dict[str, Any]:
        made: dict[str, Any] = _maker(kind)(self._values)
        return made


class RpcAnswers:
    """Endless source of a controller's responses: half are spoilt, one of five is an error."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._rng = values.rng

    def next(self) -> tuple[bytes, type[RpcResponse]]:
        """Return an encoded response and the class to parse it as."""
        rng = self._rng
        kind = rng.choice(REQUESTS).Response
        sound, is_spoilt = self._envelope(kind), rng.random() < _SPOILT
        data: bytes = msgpack.packb(sound)
        if is_spoilt and rng.random() < 0.5:
            _put_odd(rng, sound)
            data = msgpack.packb(sound)
        elif is_spoilt:
            data = spoilt(rng, data, msgpack.packb(self._envelope(kind)))
        return data, kind

    def _envelope(self, kind: type[RpcResponse]) -> list[Any]:
        correlation_id = self._rng.randint(0, _MAX_CORRELATION_ID)
        if self._rng.random() < 0.2:
            code = self._rng.choice([-1, 3, 6, 56, 32_000])
            return [1, correlation_id, code, "why not", None]
        return [1, correlation_id, 0, "", _maker(kind)(self._values)]


def _put_odd(rng: random.Random, envelope: list[Any]) -> None:
    """Delete a random nested value or replace it by one of a wrong type or size."""
    place: Any = envelope
    while True:
        keys: Any = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]
        if isinstance(inner, list | dict) and inner and rng.random() < 0.8:
            place = inner
            continue
        if isinstance(place, dict) and rng.random() < 0.2:
            del place[key]
        else:
            place[key] = rng.choice(_ODD)
        return


def judged(data: bytes, *, is_spoilt: bool) -> Frame:
    try:
        request = rpc_codec.decode_request(data)
    except RemoteProtocolError:
        return Frame(data, "rpc", is_spoilt, breaks=True)
    api = request.api if request.body is not None else "unknown rpc"
    return Frame(data, api, is_spoilt, breaks=False, correlation_id=request.correlation_id)


@functools.cache
def _maker(kind: type[BaseModel]) -> Callable[[Values], Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        (name, _drawn(hints[name], name, kind.__name__), field.is_required())
        for name, field in kind.model_fields.items()
    ]

    def draw(values: Values) -> dict[str, Any]:
        return {
            name: one(values)
            for name, one, is_required in fields
            if is_required or values.rng.random() < 0.8
        }

    return draw


def _drawn(hint: Any, name: str, owner: str) -> Callable[[Values], Any]:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _drawn(inside[0], name, owner)
    if origin in (Union, types.UnionType):
        kinds = [_drawn(one, name, owner) for one in inside if one is not types.NoneType]
        may_be_null = types.NoneType in inside
        return lambda values: (
            None if may_be_null and values.is_null() else values.rng.choice(kinds)(values)
        )
    if origin is Literal:
        return lambda values: values.rng.choice(inside)
    if origin is tuple:
        if len(inside) == 2 and inside[1] is Ellipsis:
            element = _drawn(inside[0], name, owner)
            return lambda values: [element(values) for _ in range(values.length())]
        parts = [_drawn(one, name, owner) for one in inside]
        return lambda values: [part(values) for part in parts]
    if origin is dict:
        key, value = _drawn(inside[0], name, owner), _drawn(inside[1], name, owner)
        return lambda values: {key(values): value(values) for _ in range(values.length())}
    return _plain(getattr(hint, "__supertype__", hint), name, owner)


def _plain(kind: Any, name: str, owner: str) -> Callable[[Values], Any]:
    if issubclass(kind, BaseModel):
        return _maker(kind)
    if issubclass(kind, Uuid):
        return lambda values: values.uuid(name)
    if issubclass(kind, enum.Enum):
        choices = [one.value for one in kind]
        return lambda values: values.rng.choice(choices)
    if issubclass(kind, bool):
        return lambda values: values.rng.random() < 0.5
    if issubclass(kind, int):
        return lambda values: values.integer(name, 64)
    if issubclass(kind, float):
        return lambda values: values.rng.choice(_FLOATS)
    if issubclass(kind, bytes):
        return lambda values: values.rng.randbytes(values.rng.randrange(30))
    assert issubclass(kind, str), kind
    return lambda values: values.text(name, owner)
