"""WIRE. What was acknowledged, written down for the pipeline's ``audit``: JSON lines.

One line per acknowledged batch: where it is, whose it is (``producer``, ``sequence`` of its first
record) and the CRC-32 (zlib's) of each record's key and value, so that the audit does not take
another record for a missing one. Some 20 bytes and 1 µs per record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from kraftjbod.gameday.load.acknowledgements import Acknowledgements


def write_acknowledged(path: Path, topic: str, loads: Iterable[Acknowledgements]) -> int:
    """Write what ``loads`` had acknowledged of ``topic`` to ``path``; how many records that are.

    :raises OSError: if the file cannot be written.
    """
    records = 0
    with path.open("w", encoding="ascii") as file:
        for load in loads:
            file.writelines(_lines(topic, load))
            records += load.acked
    return records


def _lines(topic: str, load: Acknowledgements) -> Iterator[str]:
    stream, sequence = load.stream, 0
    for ack in load.acks:
        indexes = range(sequence, sequence + ack.count)
        line = {
            "topic": topic,
            "partition": load.partition,
            "offset": ack.offset,
            "count": ack.count,
            "producer": f"tour-{load.partition}",
            "sequence": sequence,
            "key_crcs": [crc32(stream.key(index)) for index in indexes],
            "value_crcs": [crc32(stream.value(index)) for index in indexes],
        }
        yield json.dumps(line, separators=(",", ":")) + "\n"
        sequence += ack.count
