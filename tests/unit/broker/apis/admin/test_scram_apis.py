"""AlterUserScramCredentials and DescribeUserScramCredentials: conversions and errors.

The controller's decisions are those of the real control managers.
"""

from __future__ import annotations

from typing import Any

from kraftjbod.broker.apis.admin.scram_apis import ScramApis
from kraftjbod.core.errors import ErrorCode, RequestTimedOutError
from kraftjbod.core.scram import ScramCredential, ScramMechanism
from kraftjbod.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from tests.golden.transcript import World

CANARY = b"canary-salted-password"
CONTEXT: Any = None


class Controller:
    """Stands for the channel to a controller and for the metadata cache: both show one state."""

    def __init__(self) -> None:
        self.world = World()
        list(self.world.run("feature 1001"))
        self.asked: list[Any] = []
        self.is_silent = False

    @property
    def state(self) -> Any:
        return self.world.state

    async def forward(self, request: Any, *, timeout_ms: int) -> Any:
        self.asked.append(request)
        if self.is_silent:
            raise RequestTimedOutError("no controller")
        return self.world.ask(request)


def apis_of(controller: Any) -> ScramApis:
    return ScramApis(cache=controller, channel=controller, timeout_ms=1000)


def upsertion(name: str, mechanism: int = 1, iterations: int = 8192) -> Any:
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"salt",
        salted_password=CANARY,
    )


def deletion(name: str, mechanism: int = 1) -> Any:
    return AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(controller: Any, *changes: Any) -> list[tuple[str, int]]:
    kind = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    request = AlterUserScramCredentialsRequest(
        deletions=[one for one in changes if isinstance(one, kind)],
        upsertions=[one for one in changes if not isinstance(one, kind)],
    )
    answer = await apis_of(controller).alter_user_scram_credentials(request, CONTEXT)
    return [(one.user, one.error_code) for one in answer.results]


async def describe(controller: Any, *users: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
    request = DescribeUserScramCredentialsRequest(
        users=[DescribeUserScramCredentialsRequest.UserName(name=user) for user in users] or None
    )
    answer = await apis_of(controller).describe_user_scram_credentials(request, CONTEXT)
    return [
        (one.user, one.error_code, [(c.mechanism, c.iterations) for c in one.credential_infos])
        for one in answer.results
    ]


async def test_alter_scram_credentials_stores_keys_and_forwards_no_salted_password() -> None:
    controller = Controller()
    assert await alter(controller, upsertion("alice"), upsertion("bob", 2)) == [
        ("alice", 0),
        ("bob", 0),
    ]
    mechanism = ScramMechanism.SCRAM_SHA_256
    expected = ScramCredential.from_salted_password(
        mechanism, CANARY, salt=b"salt", iterations=8192
    )
    assert controller.state.scram_credentials[mechanism, "alice"] == expected
    (request,) = controller.asked
    assert CANARY not in str(request.model_dump()).encode()
    assert "salt" not in repr(request).replace("stored_key", "")


async def test_alter_scram_credentials_reports_errors_by_user() -> None:
    controller = Controller()
    results = await alter(
        controller,
        deletion("missing"),
        deletion("twice"),
        upsertion("twice", 2),
        upsertion("unknown", 9),
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16_385),
        upsertion(""),
        upsertion("x" * 2000),
        upsertion("good"),
    )
    assert dict(results) == {
        "missing": ErrorCode.RESOURCE_NOT_FOUND,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "x" * 2000: ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "good": 0,
    }
    assert [user for _, user in controller.state.scram_credentials] == ["good"]


async def test_alter_scram_credentials_without_controller_times_out_per_user() -> None:
    controller = Controller()
    controller.is_silent = True
    assert await alter(controller, upsertion("a")) == [("a", ErrorCode.REQUEST_TIMED_OUT)]
    assert await alter(controller) == []


async def test_describe_scram_credentials_shows_mechanisms_and_iterations() -> None:
    controller = Controller()
    await alter(controller, upsertion("alice", 2, 4096), upsertion("bob"))
    await alter(controller, upsertion("alice", 1))
    alice = ("alice", 0, [(1, 8192), (2, 4096)])
    assert await describe(controller) == [alice, ("bob", 0, [(1, 8192)])]
    assert await describe(controller, "alice") == [alice]


async def test_describe_scram_credentials_reports_missing_and_repeated_users() -> None:
    controller = Controller()
    assert await describe(controller, "eve", "bob", "bob") == [
        ("eve", ErrorCode.RESOURCE_NOT_FOUND, []),
        ("bob", ErrorCode.DUPLICATE_RESOURCE, []),
    ]
