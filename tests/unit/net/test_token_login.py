"""The client's side of OAUTHBEARER, against the server's side of a broker."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.security.jwt_validator import ValidToken
from kraftjbod.broker.security.oauthbearer_mechanism import REFUSAL, OauthbearerMechanism
from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.sasl_mechanism import LoginFailedError
from kraftjbod.net.token_login import OAUTHBEARER, TokenLogin
from tests.unit.net.test_authentication import Handler
from tests.unit.net.test_kafka_server import serving


class Validator:
    def validate(self, token: str) -> ValidToken:
        if token != "good":
            raise LoginFailedError("bad token")
        return ValidToken("alice", 60_000)


def settings(mechanism: str = OAUTHBEARER) -> SaslSettings:
    return SaslSettings(
        mechanisms={mechanism: lambda: OauthbearerMechanism(Validator(), is_node=lambda _: False)},
        memory=MemoryBudget(MemoryLimits()),
        failure_delay_ms=0,
    )


async def connect(port: int, token: str) -> KafkaConnection:
    login = TokenLogin(lambda: (token, 0.0))
    return await KafkaConnection.connect(
        "127.0.0.1", port, client_id="test", timeout_ms=30_000, login=login
    )


async def test_token_login_opens_the_session() -> None:
    async with serving(Handler(), sasl=settings()) as server:
        connection = await connect(server.port, "good")
        connection.close()


async def test_refused_token_raises_the_answer_of_the_broker() -> None:
    async with serving(Handler(), sasl=settings()) as server:
        with capture_logs() as lines, pytest.raises(OperatingError) as caught:
            await connect(server.port, "bad")
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert REFUSAL in str(caught.value)
    assert [line["reason"] for line in lines] == ["bad token"]


async def test_broker_without_the_mechanism_is_an_error_that_names_its_mechanisms() -> None:
    async with serving(Handler(), sasl=settings("PLAIN")) as server:
        with capture_logs(), pytest.raises(OperatingError, match="one of PLAIN"):
            await connect(server.port, "good")


async def test_provider_that_is_away_fails_the_login() -> None:
    def make_token() -> tuple[str, float]:
        raise ConnectionLostError("the provider is away")

    async with serving(Handler(), sasl=settings()) as server:
        with pytest.raises(ConnectionLostError, match="the provider is away"):
            await KafkaConnection.connect(
                "127.0.0.1",
                server.port,
                client_id="test",
                timeout_ms=30_000,
                login=TokenLogin(make_token),
            )
