"""``ClusterPeers``: the hosts that are members of the cluster, and resolution of their names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import pytest

from kraftjbod.core.allowed_hosts import AllowedHosts
from kraftjbod.net import cluster_peers
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.connection import addresses_of


class Names:
    """A name service with ``known`` addresses; a name in ``silent`` has no answer now."""

    def __init__(self, **known: str) -> None:
        self.known: dict[str, list[str]] = {name: [address] for name, address in known.items()}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(self, name: str) -> Collection[str] | None:
        self.asked.append(name)
        await self.held.wait()
        return None if name in self.silent else self.known.get(name, [])


class Hosts:
    """The hosts in the metadata."""

    def __init__(self, *hosts: str) -> None:
        self.now = frozenset(hosts)

    def __call__(self) -> frozenset[str]:
        return self.now


@contextlib.asynccontextmanager
async def running(peers: ClusterPeers) -> AsyncIterator[None]:
    task = asyncio.create_task(peers.resolve_periodically())
    try:
        await asyncio.sleep(0)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def resolved_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_peers, "LEAST_INTERVAL_S", 0.0)


def listed(*items: str) -> AllowedHosts:
    return AllowedHosts.parse(items)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "[::1]"])
def test_cluster_peers_allow_loopback_by_default(host: str) -> None:
    assert ClusterPeers().allows(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::2", "?", "", "localhost"])
def test_cluster_peers_refuse_other_hosts_by_default(host: str) -> None:
    assert not ClusterPeers().allows(host)


async def test_cluster_peers_listed_hosts_replace_the_default() -> None:
    known = Hosts("10.0.0.7")
    peers = ClusterPeers(listed("10.1.0.0/16", "fd00::7"), known_hosts=known)
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7"):
        assert peers.allows(host), host
    for host in ("127.0.0.1", "10.0.0.7", "10.2.0.1", "fd00::8"):
        assert not await peers.admits(host), host


def test_cluster_peers_star_allows_every_host() -> None:
    assert ClusterPeers(listed("*")).allows("203.0.113.9")


async def test_cluster_peers_admit_a_registered_address_at_its_first_request() -> None:
    hosts = Hosts()
    peers = ClusterPeers(known_hosts=hosts)
    assert not await peers.admits("10.0.0.7")
    hosts.now = frozenset({"10.0.0.7"})
    assert await peers.admits("10.0.0.7") and peers.allows("::ffff:10.0.0.7")


async def test_cluster_peers_refuse_a_removed_address_after_the_next_check_of_an_unknown_host() -> (
    None
):
    hosts = Hosts("10.0.0.7")
    peers = ClusterPeers(known_hosts=hosts)
    assert await peers.admits("10.0.0.7")
    hosts.now = frozenset()
    assert not await peers.admits("10.0.0.8")
    assert not peers.allows("10.0.0.7")


async def test_cluster_peers_resolve_names_before_they_refuse_an_unknown_host() -> None:
    names = Names(broker="10.0.0.7")
    peers = ClusterPeers(listed("broker"), resolve=names)
    async with running(peers):
        assert await peers.admits("10.0.0.7")
        # The container was restarted with another address.
        names.known["broker"] = ["10.0.0.9"]
        assert await peers.admits("10.0.0.9")
        assert not peers.allows("10.0.0.7"), "the address belongs to another host by now"


async def test_cluster_peers_resolve_a_new_name_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_peers, "LEAST_INTERVAL_S", 3600.0)
    hosts, names = Hosts("a"), Names(a="10.0.0.1", b="10.0.0.2")
    peers = ClusterPeers(known_hosts=hosts, resolve=names)
    async with running(peers):
        assert not await peers.admits("10.0.0.2")
        hosts.now = frozenset({"a", "b"})
        assert await peers.admits("10.0.0.2")


async def test_cluster_peers_resolve_names_for_unknown_hosts_once_per_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_peers, "LEAST_INTERVAL_S", 3600.0)
    names = Names(broker="10.0.0.7")
    peers = ClusterPeers(listed("broker"), resolve=names)
    async with running(peers):
        for _ in range(100):
            assert not await peers.admits("203.0.113.9")
    assert names.asked == ["broker"]


async def test_cluster_peers_keep_the_address_of_a_name_without_answer() -> None:
    names = Names(a="10.0.0.1", b="10.0.0.2")
    peers = ClusterPeers(listed("a", "b"), resolve=names)
    async with running(peers):
        assert await peers.admits("10.0.0.1") and await peers.admits("10.0.0.2")
        names.silent.add("a")
        del names.known["b"]
        assert not await peers.admits("203.0.113.9")
        assert peers.allows("10.0.0.1") and not peers.allows("10.0.0.2")


async def test_cluster_peers_name_without_answer_does_not_delay_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_peers, "PATIENCE_S", 3600.0)
    names = Names(b="10.0.0.2")
    slow = asyncio.Event()

    async def resolve(name: str) -> Collection[str] | None:
        if name == "a":
            await slow.wait()
        return await names(name)

    peers = ClusterPeers(listed("a", "b"), resolve=resolve)
    async with running(peers):
        assert await peers.admits("10.0.0.2")


async def test_cluster_peers_waiting_for_names_is_limited_in_time_and_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_peers, "PATIENCE_S", 0.05)
    names = Names(broker="10.0.0.7")
    names.held.clear()
    peers = ClusterPeers(listed("broker"), resolve=names)
    async with running(peers):
        assert not await peers.admits("10.0.0.7"), "the name service does not answer"
        monkeypatch.setattr(cluster_peers, "PATIENCE_S", 3600.0)
        monkeypatch.setattr(cluster_peers, "MAX_WAITING", 1)
        first = asyncio.create_task(peers.admits("10.0.0.7"))
        await asyncio.sleep(0)
        assert not await peers.admits("10.0.0.7"), "enough requests wait already"
        names.held.set()
        assert await first


async def test_cluster_peers_without_names_need_no_resolver() -> None:
    """With literal addresses only, no request waits for a resolver that does not run."""
    peers = ClusterPeers(listed("10.0.0.7"))
    assert not await peers.admits("10.0.0.8")


async def test_addresses_of_resolves_names_and_returns_no_address_for_unknown_names() -> None:
    assert "127.0.0.1" in (await addresses_of("localhost", timeout_ms=10_000) or ())
    assert await addresses_of("a..b", timeout_ms=10_000) in ((), None)
    assert await addresses_of("\udcff", timeout_ms=10_000) == ()
