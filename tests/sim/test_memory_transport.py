"""``MemoryTransport``: order of bytes, and back pressure."""

from __future__ import annotations

from tests.sim.net_rig import PORT, Net


def test_transport_delivers_bytes_in_order_and_then_the_end() -> None:
    net = Net()
    here, there = net.connected()
    assert here.transport.get_extra_info("peername") == (net.places["b"].address, PORT)
    sent = b"".join(b"%07d" % i for i in range(5_000))
    for at in range(0, len(sent), 700):
        here.transport.writelines([sent[at : at + 300], memoryview(sent)[at + 300 : at + 700]])
    here.transport.close()
    net.run_for(1)
    assert bytes(there.received) == sent
    assert (here.callbacks, there.callbacks) == (["lost"], ["lost"])


def test_paused_reader_pauses_the_writer() -> None:
    net = Net()
    here, there = net.connected()
    there.transport.pause_reading()
    here.transport.write(b"x" * 1_000_000)
    net.run_for(1)
    assert (len(there.received), here.callbacks) == (0, ["pause"])
    there.transport.resume_reading()
    net.run_for(1)
    assert (len(there.received), here.callbacks) == (1_000_000, ["pause", "resume"])
