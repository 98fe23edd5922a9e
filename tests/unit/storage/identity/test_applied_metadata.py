"""The ``applied-metadata.json`` file, which records how much of the metadata log was applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftjbod.core.errors import InconsistentStorageError
from kraftjbod.core.ids import Uuid
from kraftjbod.storage.identity.applied_metadata import (
    AppliedMetadata,
    forget_applied_metadata,
    path_of,
    read_applied_metadata,
    write_applied_metadata,
)
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs

APPLIED = AppliedMetadata(metadata_log_id=Uuid(b"l" * 16), offset=41)


def test_applied_metadata_is_read_as_written_until_it_is_forgotten() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    assert read_applied_metadata(vfs, "/m") is None
    write_applied_metadata(vfs, "/m", APPLIED)
    assert read_applied_metadata(vfs, "/m") == APPLIED
    assert forget_applied_metadata(vfs, "/m") == APPLIED
    assert read_applied_metadata(vfs, "/m") == replace(APPLIED, is_forgotten=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata_log_id": "x", "offset": 1}'])
def test_read_applied_metadata_rejects_a_damaged_file(text: str) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/m")
    write_atomically(vfs, path_of("/m"), text.encode())
    with pytest.raises(InconsistentStorageError, match=r"/m/applied-metadata.json is damaged"):
        read_applied_metadata(vfs, "/m")
