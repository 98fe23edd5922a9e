"""Flags of ``kraftjbod-storage format`` that choose the first voters."""

from __future__ import annotations

import pytest

from kraftjbod.cli.quorum.initial_voters import QuorumFlags, parse_controllers
from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.node_config import Endpoint, StorageSettings

ONE = DirectoryId(bytes(15) + b"\x01")
TWO = DirectoryId(bytes(15) + b"\x02")
OWN = Endpoint("CTL", "c1", 9090)


def settings(role: str, voters: str = "") -> StorageSettings:
    values = {"process.roles": role, "node.id": "1", "log.dirs": "/d"}
    if voters:
        values["controller.quorum.voters"] = voters
    return StorageSettings.from_properties(values, source="test", base_dir="/")


STATIC = "1@c1:9090"


@pytest.mark.parametrize(
    ("role", "voters", "flags", "why"),
    [
        ("controller", "", {}, "Because controller.quorum.voters is not set"),
        ("controller", STATIC, {"standalone": True}, "You cannot specify controller.quorum.voters"),
        ("controller", STATIC, {"initial_controllers": "x"}, "You cannot specify"),
        ("broker", "", {"standalone": True}, "only use --standalone on a controller"),
        ("controller", "", {"standalone": True, "no_initial_controllers": True}, "Only one of"),
        ("controller", STATIC, {}, None),
        ("controller", STATIC, {"no_initial_controllers": True}, None),
        ("controller", "", {"standalone": True}, None),
        ("broker", "", {}, None),
    ],
)
def test_quorum_flags_are_checked_against_role_and_static_voters(
    role: str, voters: str, flags: dict[str, bool], why: str | None
) -> None:
    given = QuorumFlags(**flags)  # type: ignore[arg-type]  # a table of keywords
    if why is None:
        given.check(settings(role, voters))
    else:
        with pytest.raises(StartupError, match=why):
            given.check(settings(role, voters))


def test_quorum_flags_yield_standalone_given_or_no_voters() -> None:
    alone = QuorumFlags(standalone=True).voters(BrokerId(1), OWN, ONE)
    assert alone == parse_controllers(f"1@c1:9090:{ONE}", "CTL")
    text = f"1@c1:9090:{ONE},2@[::1]:9091:{TWO}"
    several = QuorumFlags(initial_controllers=text).voters(BrokerId(1), OWN, ONE)
    assert several is not None
    assert [voter.endpoints for voter in several.voters] == [
        ("CTL://c1:9090",),
        ("CTL://[::1]:9091",),
    ]
    assert QuorumFlags(no_initial_controllers=True).voters(BrokerId(1), OWN, ONE) is None
    for bad in ("", "1@c1:9090", f"1@c1:x:{ONE}", f"-1@c1:9090:{ONE}", f"{text},{text}"):
        with pytest.raises(StartupError):
            parse_controllers(bad, "CTL")
