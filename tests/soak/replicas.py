"""Whether all copies of a partition are one: the bytes of their logs, read from the disks.

Brokers have stopped by then. Followers keep batches as their leaders have them, headers included,
so that two whole copies are equal byte by byte, however they are cut into segments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1024 * 1024


def differing_replicas(log_dirs: Iterable[Path], topic: str, partitions: int) -> list[str]:
    """One sentence for each partition whose copies differ, or that lies twice in one broker."""
    findings = []
    for partition in range(partitions):
        name = f"{topic}-{partition}"
        copies = {path / name: _digest(path / name) for path in log_dirs if (path / name).is_dir()}
        if len(set(copies.values())) > 1:
            found = ", ".join(f"{path}: {size} bytes" for path, (size, _) in copies.items())
            findings.append(f"the copies of {name} differ: {found}")
    return findings


def _digest(replica: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    for segment in sorted(replica.glob("*.log")):
        with segment.open("rb") as file:
            while content := file.read(_CHUNK_BYTES):
                digest.update(content)
                size += len(content)
    return size, digest.hexdigest()
