"""bootstrap.json."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.storage.bootstrap import read_bootstrap, write_bootstrap
from kraftjbod.storage.vfs import OpenMode
from tests.faults.vfs_mem import MemVfs


def test_bootstrap_features():
    vfs = MemVfs()
    vfs.make_dirs("/m")
    assert read_bootstrap(vfs, "/m") == {"metadata.version": 17}
    write_bootstrap(vfs, "/m", {"metadata.version": 5})
    assert read_bootstrap(vfs, "/m") == {"metadata.version": 5}
    vfs.open("/m/bootstrap.json", OpenMode.READ_WRITE).truncate(4)
    with pytest.raises(StartupError, match=r"bootstrap\.json is damaged"):
        read_bootstrap(vfs, "/m")
