"""``MemoryNetwork``: TCP's guarantees when links are cut and hosts end."""

from __future__ import annotations

import pytest

from tests.sim.net_rig import PORT, Net, Peer


def test_partition_delays_bytes_and_hangs_new_connections() -> None:
    net = Net()
    here, there = net.connected()
    net.network.partition("a", "b")
    here.transport.write(b"late")
    hanging = net.connect()
    net.run_for(30)
    assert (bytes(there.received), hanging.done()) == (b"", False)
    net.network.heal("a")
    net.run_for(1)
    assert (bytes(there.received), hanging.done()) == (b"late", True)
    net.network.partition("a", "b")
    hanging = net.connect()
    net.run_for(200)
    assert isinstance(hanging.exception(), TimeoutError)


def test_partition_that_rejects_refuses_new_connections_and_keeps_open_ones() -> None:
    net = Net()
    here, there = net.connected()
    net.network.partition("a", "b", one_way=True, rejects=True)
    here.transport.write(b"late")
    refused = net.connect()
    net.run_for(1)
    assert isinstance(refused.exception(), ConnectionRefusedError)
    assert (bytes(there.received), here.callbacks, there.callbacks) == (b"", [], [])
    net.network.heal("a", "b")
    accepted = net.connect()
    net.run_for(1)
    assert (bytes(there.received), accepted.exception()) == (b"late", None)


def test_one_way_partition_stops_other_direction_at_full_window() -> None:
    net = Net()
    here, there = net.connected()
    net.network.partition("b", "a", one_way=True)
    here.transport.write(b"x" * 1_000_000)
    there.transport.write(b"unheard")
    net.run_for(30)
    assert 0 < len(there.received) < 1_000_000
    assert bytes(here.received) == b""
    net.network.heal()
    net.run_for(2)
    assert (len(there.received), bytes(here.received)) == (1_000_000, b"unheard")


def test_killed_process_closes_connections_and_refuses_new_ones() -> None:
    net = Net()
    here, there = net.connected()
    there.transport.write(b"last words")
    net.loops["b"].is_dead = True
    net.network.end_process(net.loops["b"], says_so=True)
    net.run_for(1)
    assert (bytes(here.received), here.callbacks, there.callbacks) == (b"last words", ["lost"], [])
    refused = net.connect()
    net.run_for(1)
    assert isinstance(refused.exception(), ConnectionRefusedError)


def test_host_without_power_is_silent_until_it_is_back() -> None:
    net = Net()
    here, _ = net.connected()
    net.loops["b"].is_dead = True
    net.network.end_process(net.loops["b"], says_so=False)
    net.network.set_power(net.places["b"], is_on=False)
    here.transport.write(b"anybody there")
    hanging = net.connect()
    net.run_for(60)
    assert (here.callbacks, hanging.done()) == ([], False)
    net.network.set_power(net.places["b"], is_on=True)
    net.boot("b")
    assert here.callbacks == ["ConnectionResetError"]
    assert hanging.done()


def test_reset_connections_breaks_both_sides() -> None:
    net = Net()
    here, there = net.connected()
    assert net.network.reset_connections("a", "b") == 2
    net.run_for(1)
    assert (here.callbacks, there.callbacks) == (["ConnectionResetError"], ["ConnectionResetError"])


def test_cancelled_connection_attempt_leaves_no_connection() -> None:
    net = Net()
    net.network.delay("a", "b", 1_000)
    task = net.connect()
    net.run_for(1.6)
    task.cancel()
    net.run_for(10)
    assert task.cancelled()
    assert [guest.callbacks for guest in net.guests] == [["lost"]]


def test_overlapping_delays_of_a_link_end_independently() -> None:
    """Before, the end of the first delay restored the second one, and the link stayed slow
    forever."""
    net = Net()
    first = net.network.delay("a", "b", 1_000)
    second = net.network.delay("b", "a", 3_000)
    first()
    slow = net.connect()
    net.run_for(5.9)
    assert not slow.done()
    second()
    quick = net.connect()
    net.run_for(0.05)
    assert quick.done()


def test_address_has_one_listener_and_name_one_host() -> None:
    net = Net()
    with pytest.raises(OSError, match="Address already in use"):
        net.run(net.loops["b"].create_server(Peer, "b", PORT))
    with pytest.raises(OSError, match="Cannot assign requested address"):
        net.run(net.loops["a"].create_server(Peer, "b", PORT), "a")
    with pytest.raises(OSError, match="no host is called c"):
        net.run(net.loops["a"].create_connection(Peer, "c", PORT), "a")


@pytest.mark.parametrize("by_fin", [False, True])
def test_connection_broken_for_one_side_drops_writes_of_the_other(*, by_fin: bool) -> None:
    net = Net()
    client, server = net.connected()
    assert net.network.break_one_side("a", "b", by_fin=by_fin) == 1
    net.run_for(0.1)
    assert client.callbacks == ["lost" if by_fin else "ConnectionResetError"]
    server.transport.write(b"into nothing")
    net.run_for(60)
    assert client.received == b"" and server.callbacks == []
    assert not server.transport.is_closing()
    again, _ = net.connected()
    again.transport.write(b"again")
    net.run_for(0.1)
    assert net.guests[-1].received == b"again"
