"""PURE. Comparison of a partition's content with the acknowledgements.

Every acknowledged record must be there once, unchanged, in order, and at the acknowledged offset.
Records in doubt (sent, without an answer) may be there or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.gameday.load.acknowledgements import Acknowledgements
from kraftjbod.protocol.records import Record

#: Kinds of wrong records, the names of their counts in :class:`Findings`.
WRONG: Final = ("lost", "twice", "out_of_order", "changed", "misplaced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of the check of one partition: counts of records. The last five are 0 if all is
    well.

    ``found`` counts the records of the load, ``lost`` acknowledged records that are not found,
    ``twice`` repetitions, and ``out_of_order`` records after a record that was sent later.
    ``changed`` counts wrong keys and values, and ``misplaced`` records at another than the
    acknowledged offset.
    """

    partition: int
    acknowledged: int
    found: int
    lost: int
    twice: int
    out_of_order: int
    changed: int
    misplaced: int

    @property
    def is_good(self) -> bool:
        return not any(getattr(self, kind) for kind in WRONG)


def unread(load: Acknowledgements) -> Findings:
    """Return the findings of a partition that could not be read: no record is found, and none
    counts as lost or wrong.
    """
    return Findings(
        partition=load.partition,
        acknowledged=load.acked,
        found=0,
        lost=0,
        twice=0,
        out_of_order=0,
        changed=0,
        misplaced=0,
    )


class PartitionCheck:
    """Compares the content of one partition with the acknowledgements of ``load``.

    Call :meth:`feed` with each record in the order of offsets, then :meth:`findings`. Records with
    a key that the load's stream does not own are ignored.
    """

    def __init__(self, load: Acknowledgements) -> None:
        self._load = load
        sent = load.acked + load.in_doubt
        self._index_of = {load.stream.key(index): index for index in range(sent)}
        self._promised: list[int] = []
        for ack in load.acks:
            self._promised.extend(range(ack.offset, ack.offset + ack.count))
        self._seen = bytearray(sent)
        self._last = -1
        self._found = self._twice = self._out_of_order = self._changed = self._misplaced = 0

    def feed(self, record: Record) -> None:
        key = record.key or b""
        index = self._index_of.get(key)
        if index is None and not self._load.stream.owns(key):
            return
        self._found += 1
        if index is None or record.value != self._load.stream.value(index):
            self._changed += 1
            return
        self._twice += self._seen[index]
        self._seen[index] = 1
        self._out_of_order += index < self._last
        self._last = index
        if index < self._load.acked:
            self._misplaced += record.offset != self._promised[index]

    def findings(self) -> Findings:
        return Findings(
            partition=self._load.partition,
            acknowledged=self._load.acked,
            found=self._found,
            lost=self._seen.count(0, 0, self._load.acked),
            twice=self._twice,
            out_of_order=self._out_of_order,
            changed=self._changed,
            misplaced=self._misplaced,
        )
