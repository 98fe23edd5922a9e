"""Changes of SCRAM credentials show no key."""

from __future__ import annotations

from kraftjbod.protocol.rpc_scram_messages import ScramChange


def test_scram_change_repr_contains_no_key() -> None:
    change = ScramChange(user="alice", mechanism=1, salt=b"s1", stored_key=b"k2", server_key=b"k3")
    assert not {"s1", "k2", "k3"} & {repr(change)[i : i + 2] for i in range(len(repr(change)))}
