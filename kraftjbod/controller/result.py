"""PURE. ``ControllerResult``: records to append, and a response to hold until they commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kraftjbod.metadata.records import Record

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult(Generic[R]):
    """The records and the response of a decision.

    An atomic result takes effect as a whole or not at all. The records of any other result take
    effect one by one, in order. After a crash in between, repeating the request does the rest. If
    ``is_part``, the response is not valid: decide again once ``records`` are committed.
    """

    records: tuple[Record, ...] = ()
    response: R
    is_atomic: bool = True
    is_part: bool = False
