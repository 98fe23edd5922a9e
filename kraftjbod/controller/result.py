"""PURE. ``ControllerResult``: a decision is records to append, and a reply to hold until they
commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kraftjbod.metadata.records import Record

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult(Generic[R]):
    """No records, nothing to wait for.

    Atomic: ``records`` take effect together, or not at all. Otherwise each does, in their order,
    and a crash in between may leave any number of the first ones: what is left comes of whoever
    wanted it wanting it again.

    A part: the response is none yet; who asked asks again once ``records`` are committed.
    """

    records: tuple[Record, ...] = ()
    response: R
    is_atomic: bool = True
    is_part: bool = False
