"""``SnapshotRot``: flips a bit of a controller's newest metadata snapshot, and flips it back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from kraftjbod.raft.log.snapshot_files import SNAPSHOT_FILE
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_file import ONE_BIT
from kraftjbod.testing.simulation.simulated_cluster import SimulatedController
from tests.sim.search.faults.stage import Stage


class SnapshotRot:
    """:param stage: receives a note for each bit."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        #: Number of rotten bits so far.
        self.rotted = 0

    @contextmanager
    def rotten(self, host: SimulatedController, rng: random.Random) -> Iterator[bool]:
        """Rot one bit of the newest snapshot during the context.

        Yield whether the controller has a snapshot. The bit is restored, because two snapshots of
        one controller must not rot.
        """
        disk = host.metadata_disk
        directory = f"{disk.path}/{CLUSTER_METADATA_DIR}"
        names = [entry.name for entry in disk.vfs.list_dir(directory)]
        found = sorted(name for name in names if SNAPSHOT_FILE.fullmatch(name))
        if not found:
            self._stage.note(f"{host.name} has no snapshot")
            yield False
            return
        path = f"{directory}/{found[-1]}"
        file = disk.vfs.open(path, OpenMode.READ)
        at = rng.randrange(file.size())
        right = file.data[at]
        file.rot(at)
        self.rotted += 1
        self._stage.note(f"{path} is rotten at {at}")
        try:
            yield True
        finally:
            # After a power cut the path may have another file, and a newer snapshot may exist.
            for left in {file, disk.vfs.open_if_exists(path) or file}:
                if at < left.size() and left.data[at] == right ^ ONE_BIT:
                    left.rot(at)
