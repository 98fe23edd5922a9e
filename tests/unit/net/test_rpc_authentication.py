"""Logins on the RPC over real sockets: order, limits, failures, renewal and expiry."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.dialer import Dialer
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep
from kraftjbod.protocol.rpc_codec import encode_request
from kraftjbod.protocol.rpc_login_messages import LoginRequestRpc
from tests.unit.net.closed_connections import is_closed
from tests.unit.net.test_rpc_server import answered, ask, new_client, serving

PASSWORD = "canary-password"
NODES = NodePrincipals.parse("User:broker-{id}")


class Plain:
    """Accepts each user with :data:`PASSWORD`."""

    def respond(self, message: bytes) -> SaslStep:
        _, user, password = message.decode().split("\0")
        if password != PASSWORD:
            raise LoginFailedError("wrong", shown="wrong password")
        return SaslStep(token=b"", user=user)


def sasl(**changed: Any) -> SaslSettings:
    values: dict[str, Any] = {
        "mechanisms": {"PLAIN": Plain},
        "memory": MemoryBudget(MemoryLimits()),
        "failure_delay_ms": 1,
    }
    return SaslSettings(**{**values, **changed})


def dialer(user: str, password: str = PASSWORD) -> Dialer:
    return Dialer(credential=PlainCredential(user, password))


async def test_rpc_login_gives_the_connection_its_principal() -> None:
    async with serving(sasl=sasl(), node_principals=NODES) as (server, stranger, handler):
        client = new_client(server.port, dialer=dialer("broker-7"))
        assert answered(await client.call(ask(7), timeout_ms=5000)) == 7
        with pytest.raises(OperatingError, match="is not its principal") as refused:
            await client.call(ask(8), timeout_ms=5000)
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        client.close()
        assert handler.started.qsize() == 1
        with capture_logs() as logs, pytest.raises(ConnectionLostError):
            await stranger.call(ask(7), timeout_ms=5000)
        assert [log["event"] for log in logs] == ["connection_broke_protocol"]
        assert "before the login" in logs[0]["reason"]
        assert handler.started.qsize() == 1


@pytest.mark.parametrize(
    ("user", "reason"), [("broker-7", "wrong password"), ("*", "Authentication failed")]
)
async def test_failed_rpc_login_is_a_lost_connection_with_the_reason(
    user: str, reason: str
) -> None:
    password = "other" if user != "*" else PASSWORD
    async with serving(sasl=sasl()) as (server, _, handler):
        client = new_client(server.port, dialer=dialer(user, password))
        with capture_logs() as logs, pytest.raises(ConnectionLostError) as lost:
            await client.call(ask(7), timeout_ms=5000)
        assert f"the login of {user} at 127.0.0.1:{server.port} failed: {reason}" in str(lost.value)
        assert [log["event"] for log in logs] == ["authentication_failed"]
        assert PASSWORD not in str(logs)
        client.close()
        assert handler.started.empty()


async def test_rpc_login_with_another_mechanism_is_refused() -> None:
    async with serving(sasl=sasl(mechanisms={})) as (server, _, _handler):
        client = new_client(server.port, dialer=dialer("broker-7"))
        with pytest.raises(ConnectionLostError, match="PLAIN is not served to nodes"):
            await client.call(ask(7), timeout_ms=5000)
        client.close()


async def test_rpc_login_at_listener_without_sasl_fails_with_a_reason() -> None:
    async with serving() as (server, _, _handler):
        client = new_client(server.port, dialer=dialer("broker-7"))
        with pytest.raises(ConnectionLostError, match="'Login' version 0 is not served"):
            await client.call(ask(7), timeout_ms=5000)
        client.close()


def _login(user: str) -> LoginRequestRpc:
    credential = PlainCredential(user, PASSWORD)
    return LoginRequestRpc(mechanism=credential.mechanism, token=credential.token)


async def test_rpc_client_logs_in_again_before_the_session_ends() -> None:
    logins = 0

    class Counted(Plain):
        def respond(self, message: bytes) -> SaslStep:
            nonlocal logins
            logins += 1
            return super().respond(message)

    settings = sasl(mechanisms={"PLAIN": Counted}, max_reauth_ms=200)
    async with serving(sasl=settings) as (server, _, handler):
        client = new_client(server.port, dialer=dialer("broker-7"))
        connections = set()
        with capture_logs() as logs:
            async with asyncio.timeout(30):
                # Without a second login on a connection, each session ends with its connection.
                while logins <= len(connections):
                    # A pause of the test may outlast a session, which the server reports.
                    with contextlib.suppress(ConnectionLostError):
                        await client.call(ask(7), timeout_ms=5000)
                        connections.add(handler.connections[7])
                    await asyncio.sleep(0.02)
        client.close()
        assert 1 <= len(connections) <= 1 + len(logs)


async def test_rpc_request_after_the_session_closes_the_connection() -> None:
    async with serving(sasl=sasl(max_reauth_ms=1)) as (server, _, handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_request(0, _login("broker-7")))
        length = int.from_bytes(await reader.readexactly(4))
        await reader.readexactly(length)
        await asyncio.sleep(0.01)
        with capture_logs() as logs:
            writer.write(encode_request(1, ask(7)))
            assert await is_closed(reader)
        assert [log["event"] for log in logs] == ["authentication_expired"]
        assert handler.started.empty()
        writer.close()


async def test_rpc_login_as_another_user_is_refused_and_closes_the_connection() -> None:
    async with serving(sasl=sasl()) as (server, _, _handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number, user in enumerate(("broker-7", "broker-8")):
            request = _login(user)
            writer.write(encode_request(number, request))
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert b"Authentication failed" in answer
        assert await is_closed(reader)
        writer.close()


@pytest.mark.parametrize("sent", [b"", encode_request(0, ask(7)), b"\x00\x00\x00\x04junk"])
async def test_rpc_connection_without_login_is_closed(sent: bytes) -> None:
    async with serving(sasl=sasl(timeout_ms=50)) as (server, _, handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with capture_logs() as logs:
            writer.write(sent)
            assert await is_closed(reader)
        assert [log["event"] for log in logs] == ["connection_broke_protocol"]
        assert handler.started.empty()
        writer.close()


async def test_rpc_frame_before_login_has_a_smaller_limit() -> None:
    async with serving(sasl=sasl(max_receive_bytes=1024)) as (server, _, _handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with capture_logs() as logs:
            writer.write(encode_request(0, LoginRequestRpc(mechanism="PLAIN", token=b"x" * 2000)))
            assert await is_closed(reader)
        assert [log["event"] for log in logs] == ["connection_broke_protocol"]
        writer.close()
