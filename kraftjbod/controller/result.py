"""``ControllerResult``: a decision is records to append, and a reply to hold until they commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from kraftjbod.metadata.records import Record

R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerResult(Generic[R]):
    """``records`` take effect together, or not at all; no records, nothing to wait for."""

    records: tuple[Record, ...] = ()
    response: R
