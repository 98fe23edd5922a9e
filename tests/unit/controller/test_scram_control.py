"""Limit of SCRAM credentials; ``tests/golden/scram.txt`` has the decisions."""

from __future__ import annotations

import pytest

from kraftjbod.controller import scram_control
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.protocol.rpc_scram_messages import AlterUserScramCredentialsRequestRpc, ScramChange
from tests.golden.transcript import World


def test_scram_credentials_beyond_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_control, "MAX_CREDENTIALS", 2)
    world = World()
    list(world.run("feature 1001"))

    def add(*users: str) -> list[int]:
        changes = tuple(ScramChange(user=user, mechanism=1, iterations=4096) for user in users)
        answer = world.ask(AlterUserScramCredentialsRequestRpc(changes=changes))
        return [one.error_code for one in answer.results]

    assert add("a", "b", "c") == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert add("a") == [0]
    assert add("d") == [ErrorCode.POLICY_VIOLATION]


def test_scram_user_may_have_the_principal_of_a_node_if_brokers_log_in_by_that_mechanism() -> None:
    world = World()
    list(world.run("feature 1001"))
    nodes = NodePrincipals.parse("User:broker-{id}")

    def add(node_mechanism: str, mechanism: int) -> int:
        manager = scram_control.ScramControlManager(world.state, nodes, node_mechanism)
        change = ScramChange(user="broker-1", mechanism=mechanism, iterations=4096)
        result = manager.alter(AlterUserScramCredentialsRequestRpc(changes=(change,)))
        return result.response.results[0].error_code

    assert add("SCRAM-SHA-512", 2) == ErrorCode.NONE
    assert add("SCRAM-SHA-512", 1) == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert add("PLAIN", 2) == ErrorCode.UNACCEPTABLE_CREDENTIAL
