"""Requests about SCRAM credentials, to a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.scram_admin import (
    NewCredential,
    alter_scram_user,
    describe_scram_users,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.scram import ScramMechanism
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.protocol import messages as m

SHA_256, SHA_512 = ScramMechanism


async def test_requests_have_salted_passwords_and_refusals_are_raised() -> None:
    seen: list[Any] = []
    code = 0

    async def handle(_header: Any, body: Any, _context: Any) -> Any:
        seen.append(body)
        if isinstance(body, m.AlterUserScramCredentialsRequest):
            kind = m.AlterUserScramCredentialsResponse
            result = kind.AlterUserScramCredentialsResult(
                user="alice", error_code=code, error_message="Refused."
            )
            return kind(results=[result])
        described = m.DescribeUserScramCredentialsResponse
        found = described.DescribeUserScramCredentialsResult(
            user="alice",
            error_code=code,
            error_message="Refused.",
            credential_infos=[described.CredentialInfo(mechanism=2, iterations=4096)],
        )
        return described(results=[found])

    server = kafka_server(host="127.0.0.1", port=0, handler=handle)
    await server.start()
    try:
        async with ClusterClient(f"127.0.0.1:{server.port}") as client:
            new = NewCredential(SHA_256, "canary", 4096)
            await alter_scram_user(client, "alice", [new], [SHA_512])
            (one,) = seen[-1].upsertions
            assert one.salted_password == SHA_256.salted_password("canary", one.salt, 4096)
            assert [gone.mechanism for gone in seen[-1].deletions] == [SHA_512]
            assert "canary" not in repr(new)
            assert await describe_scram_users(client, None) == {"alice": {SHA_512: 4096}}
            code = int(ErrorCode.RESOURCE_NOT_FOUND)
            with pytest.raises(OperatingError, match="Refused"):
                await describe_scram_users(client, ["alice"])
            with pytest.raises(OperatingError, match="Refused"):
                await alter_scram_user(client, "alice", [], [SHA_512])
    finally:
        await server.close(timeout_ms=1000)
