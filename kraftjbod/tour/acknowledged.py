"""WIRE. The acknowledged records as JSON lines, for the pipeline's ``audit``.

Each line describes one acknowledged batch: topic, partition, offset, ``producer``, ``sequence`` of
its first record, and the CRC-32 (zlib's) of each record's key and value. By the CRCs the audit
detects a wrong record at the right place. A record costs about 20 bytes and 1 µs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from kraftjbod.gameday.load.acknowledgements import Acknowledgements


def write_acknowledged(path: Path, topic: str, loads: Iterable[Acknowledgements]) -> int:
    """Write the acknowledged batches of ``loads`` to ``path`` and return the number of records.

    :raises OSError: the file cannot be written.
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
