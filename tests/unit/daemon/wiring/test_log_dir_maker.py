"""``make_log_dir``: a log directory from the configuration."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.log_dir_maker import make_log_dir
from kraftjbod.storage.log_dirs.log_dir import LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import RealVfs
from tests.faults.loop_executor import LoopExecutor
from tests.unit.daemon.daemon_rig import broker_config, format_disk


async def test_make_log_dir_applies_reserve_and_limits_of_configuration(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    config = broker_config(
        9, path, log_dir_reserve_bytes="5000", log_dir_min_free_bytes=str(1 << 62)
    )
    failures = LogDirFailureChannel(max_dirs=1)
    log_dir = make_log_dir(config, Environment(), path, failures=failures, is_cordoned=True)
    assert log_dir.is_cordoned
    await log_dir.secure_reserve()
    assert log_dir.reserve_bytes == 5000
    found = read_meta_properties(RealVfs(), f"{path}/meta.properties")
    assert found is not None
    assert found.directory_id is not None
    log_dir.identify(found.directory_id, RealVfs().device(path))
    log_dir.start_watches()
    assert await asyncio.wait_for(failures.take(), 30) is log_dir
    assert log_dir.state is LogDirState.SATURATED, "no disk has so much free space"
    assert isinstance(log_dir.impaired_error(), LogDirImpairedError)
    log_dir.close()


async def test_make_log_dir_uses_executor_of_environment(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    around = Environment(make_executor=LoopExecutor)
    failures = LogDirFailureChannel(max_dirs=1)
    log_dir = make_log_dir(broker_config(9, path), around, path, failures=failures)
    before = threading.active_count()
    ran_in = [await log_dir.run_operation(kind, threading.get_ident) for kind in OpKind]
    ran_in.append(await log_dir.compute(threading.get_ident, size_bytes=1))
    assert set(ran_in) == {threading.get_ident()}
    assert threading.active_count() == before
    log_dir.close()
