"""AlterLogDirs over the wire: every outcome has a message; test_log_dir_admin.py has the cases."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import AlterLogDirsRequest
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import BrokerRig, brokers, dir_of
from tests.unit.broker.directories.test_log_dir_admin import WAIT_MS, in_order, registered


async def ask(rig: BrokerRig, operation: int, target: str) -> Any:
    request = AlterLogDirsRequest
    return await rig.ask(request(operation=operation, target=target, timeout_ms=WAIT_MS))


async def test_alter_log_dirs_returns_directory_id_and_state() -> None:
    new = MemVfs()
    new.make_dirs("/d3")
    async with registered() as rig:
        rig.disks_at["/d3"] = new
        added = await ask(rig, 1, "/d3")
        assert (added.error_code, added.state) == (ErrorCode.NONE, "online")
        assert "was added at /d3" in added.message
        gone = await ask(rig, 2, "/d2")
        assert (gone.error_code, gone.state) == (ErrorCode.NONE, "")
        assert gone.directory_id == dir_of(1, 2)


async def test_alter_log_dirs_forbidden_path_is_answered_like_an_unusable_one() -> None:
    """The response must not reveal which files exist on this machine."""
    disks = FaultVfs(MemVfs()), FaultVfs(MemVfs())
    async with brokers(1, *disks, answer=in_order, log_dirs_allowed_roots="/mnt") as (rig,):
        rig.parts.lifecycle.start()
        await rig.parts.lifecycle.registered()
        full = MemVfs()
        full.make_dirs("/mnt/full/x")
        rig.disks_at |= {"/mnt/none": MemVfs(), "/mnt/full": full}
        said = set()
        for path in ("/etc", "/mnt", "/mnt/../etc", "/mntx", "/mnt/none", "/mnt/full", "/"):
            with capture_logs() as logs:
                answer = await ask(rig, 1, path)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert "new_log_dir_not_taken" in {e["event"] for e in logs}
            said.add(answer.message.removeprefix(path))
        assert len(said) == 1
        await rig.parts.lifecycle.close()


async def test_alter_log_dirs_refusal_returns_code_and_reason() -> None:
    async with registered() as rig:
        answer = await ask(rig, 0, "/nowhere")
        assert answer.error_code == ErrorCode.LOG_DIR_NOT_FOUND
        assert "none of this broker's directories" in answer.message
        assert (answer.directory_id, answer.state) == (bytes(16), "")
        unknown = await ask(rig, 9, "/d1")
        assert unknown.error_code == ErrorCode.INVALID_REQUEST
        assert unknown.message == "9 is no operation on a directory"


async def test_alter_log_dirs_path_with_nul_returns_invalid_request() -> None:
    """Such a path raised ValueError in a background task and ended the broker."""
    async with registered() as rig:
        for operation in (0, 1, 2):
            answer = await ask(rig, operation, "/d1\0x")
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert "NUL" in answer.message


async def test_alter_log_dirs_unexpected_error_is_answered_and_later_requests_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with registered() as rig:
        new = MemVfs()
        new.make_dirs("/d3")
        rig.disks_at["/d3"] = new

        async def broken(*_args: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched, capture_logs() as logged:
            patched.setattr(DirAttacher, "open_new", broken)
            answer = await ask(rig, 1, "/d3")
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "ZeroDivisionError" in answer.message
        assert "background_job_failed" in {e["event"] for e in logged}
        assert (await ask(rig, 1, "/d3")).error_code == ErrorCode.NONE
