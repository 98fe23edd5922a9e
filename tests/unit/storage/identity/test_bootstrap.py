"""The ``bootstrap.json`` file with the first feature levels of a cluster."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.identity.bootstrap import read_bootstrap, write_bootstrap
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


def test_bootstrap_features_are_read_as_written_and_damage_is_rejected() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    newest = {
        "metadata.version": 33,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
        "group.version": 1,
    }
    assert read_bootstrap(vfs, "/m") == newest
    write_bootstrap(vfs, "/m", {"metadata.version": 14})
    assert read_bootstrap(vfs, "/m") == {"metadata.version": 14}
    vfs.open("/m/bootstrap.json", OpenMode.READ_WRITE).truncate(4)
    with pytest.raises(StartupError, match=r"bootstrap\.json is damaged"):
        read_bootstrap(vfs, "/m")


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ({"metadata.version": 5}, "Unknown metadata.version 5"),
        ({"kraft.version": 1}, "is damaged"),
    ],
)
def test_read_bootstrap_rejects_unknown_levels(features: dict[str, int], why: str) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    write_bootstrap(vfs, "/m", features)
    with pytest.raises(StartupError, match=why):
        read_bootstrap(vfs, "/m")
