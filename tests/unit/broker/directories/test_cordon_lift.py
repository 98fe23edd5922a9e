"""Forgetting a directory removes its cordon, so that a replacement disk is not cordoned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.protocol.rpc_config_messages import (
    IncrementalAlterConfigsRequestRpc,
    IncrementalAlterConfigsResponseRpc,
    ResourceOutcome,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from tests.unit.broker.broker_rig import BrokerRig
from tests.unit.broker.directories.test_log_dir_admin import die, in_order, perform, registered


def controller(code: ErrorCode = ErrorCode.NONE) -> object:
    def answer(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, IncrementalAlterConfigsRequestRpc):
            return in_order(request)
        if code is ErrorCode.NOT_CONTROLLER:
            raise OperatingError("no controller", code=ErrorCode.INVALID_REQUEST)
        (resource,) = request.resources
        outcome = ResourceOutcome(
            resource_type=resource.resource_type,
            name=resource.name,
            error_code=code,
            error_message="not now",
        )
        return IncrementalAlterConfigsResponseRpc(resources=(outcome,))

    return answer


def asked(rig: BrokerRig) -> Sequence[tuple[str, str, int, str | None, str | None]]:
    return [
        (resource.name, change.name, change.operation, change.value, change.base)
        for request in rig.controller.seen
        if isinstance(request, IncrementalAlterConfigsRequestRpc)
        for resource in request.resources
        for change in resource.changes
    ]


async def forgotten(rig: BrokerRig, cordoned: str | None, of: str = "1") -> str:
    """Forget the second directory and return the message for the operator."""
    if cordoned is not None:
        await rig.follow(
            ConfigRecord(
                resource_type=ResourceType.BROKER,
                resource_name=of,
                name="cordoned.log.dirs",
                value=cordoned,
            )
        )
    await die(rig, 2)
    return (await perform(rig, "forget", "/d2")).message


@pytest.mark.parametrize("of", ["1", ""])
async def test_forget_removes_the_path_from_dynamic_cordons_of_the_broker(of: str) -> None:
    async with registered(answer=controller()) as rig:
        assert "its cordon is lifted" in await forgotten(rig, "/d1,/d2", of)
        assert asked(rig) == [("1", "cordoned.log.dirs", 3, "/d2", "")]


async def test_forget_overrides_a_static_cordon_with_a_dynamic_value() -> None:
    async with registered(answer=controller(), cordoned_log_dirs="/d2") as rig:
        assert "its cordon is lifted" in await forgotten(rig, None)
        assert asked(rig) == [("1", "cordoned.log.dirs", 3, "/d2", "/d2")]


async def test_forget_without_a_cordon_of_that_path_changes_no_config() -> None:
    async with registered(answer=controller()) as rig:
        assert "cordoned.log.dirs is *: another one there" in await forgotten(rig, "*")
        assert asked(rig) == []
    async with registered(answer=controller()) as rig:
        assert (await forgotten(rig, "/d1")).endswith("treats it as a new disk")
        assert asked(rig) == []


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER])
async def test_forget_with_failing_cordon_removal_reports_it_and_removes_the_directory(
    code: ErrorCode,
) -> None:
    async with registered(answer=controller(code)) as rig:
        with capture_logs() as logged:
            message = await forgotten(rig, "/d2")
        assert "its cordon stays" in message and "take /d2 out of cordoned.log.dirs" in message
        assert "cordon_not_lifted" in [line["event"] for line in logged]
        assert [log_dir.path for log_dir in rig.logs.dirs()] == ["/d1"]
