"""``cluster.action.allowed.hosts``: accepted values, and spellings of the same address."""

from __future__ import annotations

import pytest

from kraftjbod.core.allowed_hosts import AllowedHosts, address_of


def test_allowed_hosts_parse_distinguishes_networks_from_names() -> None:
    hosts = AllowedHosts.parse(
        ["10.0.0.7", "10.1.2.3/16", "[fd00::7]", "fd01::/64", "broker_1.Example.org", "b2"]
    )
    assert list(map(str, hosts.networks)) == [
        "10.0.0.7/32",
        "10.1.0.0/16",
        "fd00::7/128",
        "fd01::/64",
    ]
    assert hosts.names == ("broker_1.example.org", "b2")
    assert not hosts.is_every


def test_allowed_hosts_parse_mapped_address_is_the_ipv4_address() -> None:
    assert list(map(str, AllowedHosts.parse(["::ffff:10.0.0.7"]).networks)) == ["10.0.0.7/32"]


def test_allowed_hosts_star_allows_every_host() -> None:
    assert AllowedHosts.parse(["*"]) == AllowedHosts(is_every=True)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "names no host"),
        (["*", "10.0.0.1"], "must stand alone"),
        (["broker-1:9092"], "'broker-1:9092' is no address, network or host name"),
        (["PLAINTEXT://broker-1:9092"], "is no address"),
        (["10.0.0.256"], "'10.0.0.256' is no address"),
        (["10.0.0"], "'10.0.0' is no address"),
        (["10.0.0.0/33"], "is no address"),
        (["fd00::/129"], "is no address"),
        (["a" * 64], "is no address"),
        ([".".join(["a"] * 200)], "is no address"),
        (["-a"], "is no address"),
        (["a b"], "is no address"),
        (["*.example.org"], "is no address"),
        ([f"h{number}" for number in range(1001)], "1000 may be"),
    ],
)
def test_allowed_hosts_parse_refuses_invalid_hosts(items: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        AllowedHosts.parse(items)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:7f00:1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("broker-1", None),
        ("?", None),
        ("", None),
    ],
)
def test_address_of_returns_numeric_address_or_none(text: str, address: str | None) -> None:
    found = address_of(text)
    assert (None if found is None else str(found)) == address
