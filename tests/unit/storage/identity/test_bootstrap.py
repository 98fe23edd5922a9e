"""The ``bootstrap.json`` file with the first feature levels of a cluster."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.core.scram import ScramCredential, ScramMechanism, ScramUser
from kraftjbod.storage.identity.bootstrap import (
    read_bootstrap,
    read_bootstrap_users,
    write_bootstrap,
)
from kraftjbod.storage.vfs import OpenMode, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs


def test_bootstrap_features_are_read_as_written_and_damage_is_rejected() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    newest = {
        "metadata.version": 1001,
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


def test_bootstrap_users_are_read_as_written_and_damage_quotes_no_key() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    assert read_bootstrap_users(vfs, "/m") == ()
    write_bootstrap(vfs, "/m", {"metadata.version": 1001})
    assert read_bootstrap_users(vfs, "/m") == ()
    of = ScramCredential(salt=b"s", stored_key=b"\xff", server_key=b"k", iterations=4096)
    users = (ScramUser("alice", ScramMechanism.SCRAM_SHA_512, of),)
    write_bootstrap(vfs, "/m", {"metadata.version": 1001}, users=users)
    assert read_bootstrap_users(vfs, "/m") == users
    data = bytes(vfs.read_if_exists("/m/bootstrap.json") or b"").replace(b'"salt"', b'"tlas"')
    write_atomically(vfs, "/m/bootstrap.json", data)
    with pytest.raises(StartupError, match=r"bootstrap\.json is damaged; restore"):
        read_bootstrap_users(vfs, "/m")
