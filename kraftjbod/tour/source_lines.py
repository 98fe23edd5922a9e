"""WIRE. Test input: every line of the Python standard library's source, divided over partitions.

The stream of a partition repeats its lines endlessly and is deterministic. So the expected record
``index`` is known without storing the sent records.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.protocol.records import Record

_STANDARD_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of a source file: ``place`` is like ``json/decoder.py:12``, and ``text`` has no line
    end."""

    place: str
    text: bytes


class LineStream:
    """An endless stream of records: the source lines in order, then again from the first one."""

    def __init__(self, lines: list[SourceLine]) -> None:
        assert lines
        self._lines = lines

    def __len__(self) -> int:
        """Return the number of lines in one round."""
        return len(self._lines)

    def key(self, index: int) -> bytes:
        """Return ``1:json/decoder.py:12``: round and place, which make the key unique."""
        turn, line = divmod(index, len(self._lines))
        return f"{turn + 1}:{self._lines[line].place}".encode()

    def value(self, index: int) -> bytes:
        return self._lines[index % len(self._lines)].text

    def owns(self, key: bytes) -> bool:
        """Return True: the topic contains the records of this stream only."""
        return True

    def records(self, start: int, count: int, timestamp_ms: int) -> list[Record]:
        """Return the records from ``start`` to before ``start + count``."""
        return [
            Record(key=self.key(index), value=self.value(index), timestamp_ms=timestamp_ms)
            for index in range(start, start + count)
        ]


def deal_standard_library(partitions: int, root: Path = _STANDARD_LIBRARY) -> list[LineStream]:
    """Divide the files below ``root`` over partitions, about equally by number of lines.

    The lines of a file stay in one partition.
    """
    shares: list[list[SourceLine]] = [[] for _ in range(partitions)]
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(("site-packages/", "dist-packages/")):
            continue
        share = min(shares, key=len)
        share.extend(
            SourceLine(place=f"{name}:{number}", text=text)
            for number, text in enumerate(path.read_bytes().splitlines(), start=1)
        )
    return [LineStream(lines) for lines in shares]
