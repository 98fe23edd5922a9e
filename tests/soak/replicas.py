"""Compares the replicas of partitions byte by byte on the disks of stopped brokers.

Followers store batches exactly as the leader does, headers included, so that the concatenated
segments of complete replicas are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1024 * 1024


def differing_replicas(log_dirs: Iterable[Path], topic: str, partitions: int) -> list[str]:
    """Return a sentence for each partition whose logs differ."""
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
