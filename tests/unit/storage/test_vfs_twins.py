"""Every implementation of ``Vfs`` and ``VfsFile`` has the methods and parameters of the protocol.

mypy checks an implementation only where it is passed as the protocol, and accepts parameters with
more defaults there.
"""

from __future__ import annotations

import inspect

import pytest

from kraftjbod.storage.vfs import RealFile, RealVfs, Vfs, VfsFile
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_disk import ProcessFile, ProcessVfs
from tests.faults.vfs_fault import FaultFile, FaultVfs

TWINS = [
    *[(Vfs, twin) for twin in (RealVfs, MemVfs, ProcessVfs, FaultVfs)],
    *[(VfsFile, twin) for twin in (RealFile, MemFile, ProcessFile, FaultFile)],
]


def parameters(kind: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return name, kind and default of each parameter, by public method."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("protocol", "twin"), TWINS, ids=[twin.__name__ for _, twin in TWINS])
def test_vfs_twin_has_the_methods_of_the_protocol(protocol: type, twin: type) -> None:
    expected = parameters(protocol)
    found = {name: value for name, value in parameters(twin).items() if name in expected}
    assert found == expected
