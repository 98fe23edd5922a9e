"""``DynamicListeners``: key stores and limits of listeners change while a broker runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.core.config import BrokerConfig, DynamicBrokerConfig
from kraftjbod.core.config_references import Provider, ProviderKind
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.reference_reader import DynamicReferences
from kraftjbod.daemon.dynamic_listeners import DynamicListeners
from kraftjbod.daemon.listener_limits import broker_listener_limits
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.tls.node_tls import NodeTls
from kraftjbod.net.listener import Listener
from tests.certificates import Authority

PREFIX = "listener.name.outer."
FILES = 20_000


class Rig:
    """A broker's listeners PLAINTEXT and OUTER, which has TLS, without ports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = Authority()
        self.authority.issue("first").write_pkcs12(path / "first.p12", "old")
        self.authority.issue("second").write_pkcs12(path / "second.p12", "new")
        (path / "password").write_text("new\n")
        self.config = BrokerConfig.from_properties(
            {
                "process.roles": "broker",
                "node.id": "1",
                "listeners": "PLAINTEXT://127.0.0.1:9092,OUTER://127.0.0.1:9093",
                "listener.security.protocol.map": "OUTER:SSL,CONTROLLER:PLAINTEXT",
                "controller.quorum.voters": "100@127.0.0.1:9093",
                "max.connections.reserved.for.brokers": "0",
                "ssl.keystore.location": str(path / "first.p12"),
                "ssl.keystore.password": "old",
            },
            source="test",
            base_dir="/",
        )
        self.tls = NodeTls(self.config, Environment())
        names = ("PLAINTEXT", "OUTER")
        self.listeners = {
            name: Listener(
                name=name,
                host="127.0.0.1",
                port=0,
                make_session=_no_session,
                limits=broker_listener_limits(self.config, FILES, name),
            )
            for name in names
        }
        allowed = Provider(kind=ProviderKind.DIRECTORY, allowed_paths=(str(path),))
        self.dynamic = DynamicListeners(
            self.config,
            tls=self.tls,
            listeners=self.listeners,
            references=DynamicReferences({"dir": allowed}, {}, "/"),
            max_open_files=FILES,
        )

    @property
    def subject(self) -> str:
        return repr(self.tls.listener("OUTER"))

    def store(self, name: str) -> dict[str, str]:
        return {
            f"{PREFIX}ssl.keystore.location": str(self.path / name),
            f"{PREFIX}ssl.keystore.password": f"${{dir:{self.path}:password}}",
        }


def _no_session(_connection: object) -> Any:
    raise AssertionError("no connection is opened")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.tls.open_listeners()
    yield rig
    rig.tls.close()


async def test_take_uses_the_dynamic_key_store_until_it_is_removed(rig: Rig) -> None:
    assert "CN=first" in rig.subject
    present = DynamicBrokerConfig()
    rig.dynamic.take(present, rig.store("second.p12"))
    await rig.tls.renew()
    assert "CN=second" in rig.subject
    rig.dynamic.take(present, rig.store("missing.p12"))
    await rig.tls.renew()
    assert "CN=second" in rig.subject
    rig.dynamic.take(present, {})
    await rig.tls.renew()
    assert "CN=first" in rig.subject


async def test_check_refuses_key_stores_that_cannot_be_used(rig: Rig) -> None:
    await rig.dynamic.check(rig.store("second.p12"))
    await rig.dynamic.check({f"{PREFIX}max.connections": "1"})
    cases = {
        r"listener OUTER: ssl\.keystore\.location=.*missing": rig.store("missing.p12"),
        "is no PKCS12 file of this": {
            f"{PREFIX}ssl.keystore.location": str(rig.path / "second.p12")
        },
        "no TLS: its protocol is PLAINTEXT": {"listener.name.plaintext.ssl.keystore.type": "PEM"},
        "no listener OTHER": {"listener.name.other.ssl.keystore.type": "PEM"},
    }
    for message, values in cases.items():
        with pytest.raises(ConfigError, match=message):
            await rig.dynamic.check(values)
    assert "CN=first" in rig.subject


async def test_take_limits_connections_of_each_listener(rig: Rig) -> None:
    def admitted(name: str) -> int:
        class Connection:
            peer_host = "10.0.0.1"
            is_privileged = False

            def abort(self, _reason: str) -> None: ...

        quotas = rig.listeners[name].quotas
        opened = [Connection() for _ in range(10)]
        count = sum(quotas.admit(one, 0.0) for one in opened)
        for one in opened:
            quotas.release(one)
        return count

    present = DynamicBrokerConfig.from_values({"max.connections": "4"}, source="test")
    rig.dynamic.take(present, {f"{PREFIX}max.connections": "3"})
    assert (admitted("PLAINTEXT"), admitted("OUTER")) == (4, 3)
    of_address = {"max.connections.per.ip.overrides": "10.0.0.1:2"}
    rig.dynamic.take(DynamicBrokerConfig.from_values(of_address, source="test"), {})
    assert (admitted("PLAINTEXT"), admitted("OUTER")) == (2, 2)
