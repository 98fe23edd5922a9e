from __future__ import annotations

import pytest

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault, ProcessFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults import vfs_fault
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.tidy.faults_page import TOOLS


def test_values_of_faults_are_unique_and_name_their_members() -> None:
    words = [*map(str, DiskFault), *map(str, ProcessFault)]
    assert len(set(words)) == len(words)
    assert DiskFault("hang-eio") is DiskFault.HANG_EIO
    with pytest.raises(ValueError, match="fire"):
        DiskFault("fire")


def test_each_fault_is_supported_by_a_tool() -> None:
    supported = {fault for faults in TOOLS.values() for fault in faults}
    assert supported == {*DiskFault, *ProcessFault}


def test_fault_vfs_write_fails_with_the_error_number_of_the_fault() -> None:
    for fault in vfs_fault.FAULTS - {DiskFault.HANG, DiskFault.SLOW, DiskFault.ROT}:
        vfs = FaultVfs(MemVfs())
        file = vfs.open("/file", OpenMode.CREATE)
        vfs.inject(Fault(effect=fault))
        vfs.release()
        with pytest.raises(OSError) as failed:
            file.write_at(0, [b"four"])
        assert failed.value.errno == fault.error_number != 0, fault
