"""Which node the peer of a connection is."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.core.ids import BrokerId
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.node_identity import NodeIdentity

PRINCIPALS = NodePrincipals.parse("User:broker-{id}")
ONE, TWO = BrokerId(1), BrokerId(2)


def test_without_node_principals_each_connection_may_act_as_each_node() -> None:
    identity = NodeIdentity(None)
    assert identity.is_known
    assert identity.may_act_as(ONE) and identity.may_act_as(None)


def test_connection_may_act_only_as_the_node_of_its_principal() -> None:
    identity = NodeIdentity(PRINCIPALS)
    assert not identity.is_known
    assert not identity.may_act_as(ONE) and not identity.may_act_as(None)
    identity.take_principal("User:broker-1")
    assert identity.is_known
    assert identity.may_act_as(ONE) and identity.may_act_as(None)
    assert not identity.may_act_as(TWO)
    identity.take_principal("User:alice")
    assert not identity.is_known


def test_refusal_names_the_principal_and_the_claimed_node() -> None:
    identity = NodeIdentity(PRINCIPALS)
    identity.take_principal("User:broker-1")
    with capture_logs() as logs:
        text = identity.note_refused("BrokerHeartbeat", "10.0.0.1:1", TWO)
    assert "BrokerHeartbeat is only for node 2, and User:broker-1 is not its principal" in text
    (event,) = logs
    assert event["event"] == "node_principal_refused"
    assert (event["principal"], event["claimed"]) == ("User:broker-1", TWO)
