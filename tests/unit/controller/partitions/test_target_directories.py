"""``resolve_directory`` and ``placement_refusal``: target directories of replicas."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.controller.partitions.target_directories import placement_refusal, resolve_directory
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import ImpairedLogDir
from kraftjbod.metadata.registrations import BrokerRegistration

ONLINE, OFFLINE, OTHER = (DirectoryId(bytes(15) + name) for name in (b"a", b"b", b"x"))
BROKER = BrokerRegistration(
    broker_id=BrokerId(7),
    epoch=BrokerEpoch(1),
    incarnation_id=Uuid(bytes(16)),
    listeners=(),
    rack=None,
    fenced=False,
    in_controlled_shutdown=False,
    log_dirs=(ONLINE,),
    offline_log_dirs=(OFFLINE,),
    log_dir_paths={ONLINE: "/d/a"},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("any", None),
        ("/d/a", ONLINE),
        ("/d//x/../a/", ONLINE),
        (f"dirid:{ONLINE}", ONLINE),
        (f"dirid:{OFFLINE}", OFFLINE),
    ],
)
def test_resolve_directory_accepts_any_path_or_id(text: str, expected: DirectoryId | None) -> None:
    assert resolve_directory(text, BROKER) == expected


@pytest.mark.parametrize("text", ["/d/b", f"dirid:{OTHER}"])
def test_resolve_directory_of_unknown_directory_lists_known_ones(text: str) -> None:
    with pytest.raises(OperatingError, match="Broker 7 has no log directory") as refused:
        resolve_directory(text, BROKER)
    assert refused.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    assert f"/d/a (dirid:{ONLINE}), unknown path (dirid:{OFFLINE})" in refused.value.message


@pytest.mark.parametrize("text", ["", "d/a", "ANY", "dirid:short", "dirid:" + "*" * 22])
def test_resolve_directory_rejects_malformed_text(text: str) -> None:
    with pytest.raises(OperatingError) as refused:
        resolve_directory(text, BROKER)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        pytest.param(BROKER, None, id="one is open"),
        pytest.param(
            dataclasses.replace(BROKER, log_dirs=(), offline_log_dirs=()), None, id="no directories"
        ),
        pytest.param(
            dataclasses.replace(BROKER, cordoned_log_dirs=(ONLINE,), offline_log_dirs=()),
            "all its log directories are cordoned",
            id="all cordoned",
        ),
        pytest.param(
            dataclasses.replace(BROKER, cordoned_log_dirs=(ONLINE, OFFLINE)),
            "none of its log directories takes new replicas (1 cordoned, 1 offline)",
            id="cordoned or offline",
        ),
        pytest.param(
            dataclasses.replace(
                BROKER,
                log_dirs=(ONLINE, OTHER),
                offline_log_dirs=(),
                cordoned_log_dirs=(ONLINE,),
                impaired_log_dirs=(
                    ImpairedLogDir(directory_id=OTHER, state=LogDirState.SATURATED),
                ),
            ),
            "none of its log directories takes new replicas (1 cordoned, 1 impaired)",
            id="cordoned or impaired",
        ),
    ],
)
def test_placement_refusal_names_cordoned_offline_and_impaired_directories(
    broker: BrokerRegistration, why: str | None
) -> None:
    assert placement_refusal(broker) == why
