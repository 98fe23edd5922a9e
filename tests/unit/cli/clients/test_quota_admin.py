"""Requests about quotas, to a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.quota_admin import ANY_NAME, alter_quotas, describe_quotas
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.protocol import messages as m

RATE = "producer_byte_rate"


async def test_requests_name_entities_and_refusals_are_raised() -> None:
    seen: list[Any] = []
    code = 0

    async def handle(_header: Any, body: Any, _context: Any) -> Any:
        seen.append(body)
        if isinstance(body, m.AlterClientQuotasRequest):
            kind = m.AlterClientQuotasResponse
            entry = kind.EntryData(error_code=code, error_message="Refused.", entity=[])
            return kind(entries=[entry])
        described = m.DescribeClientQuotasResponse
        entries = [
            described.EntryData(
                entity=[described.EntityData(entity_type="user", entity_name=name)],
                values=[described.ValueData(key=RATE, value=5.0)],
            )
            for name in (None, "b", "a")
        ]
        return described(error_code=code, error_message="Refused.", entries=entries)

    server = kafka_server(host="127.0.0.1", port=0, handler=handle)
    await server.start()
    try:
        async with ClusterClient(f"127.0.0.1:{server.port}") as client:
            await alter_quotas(client, {"user": None, "client-id": "c"}, {RATE: 1.0, "x": None})
            (entry,) = seen[-1].entries
            assert [(e.entity_type, e.entity_name) for e in entry.entity] == [
                ("user", None),
                ("client-id", "c"),
            ]
            assert [(op.key, op.value, op.remove) for op in entry.ops] == [
                (RATE, 1.0, False),
                ("x", 0.0, True),
            ]
            found = await describe_quotas(client, {"user": ANY_NAME})
            assert list(found) == [(("user", name),) for name in ("a", "b", None)]
            assert [(c.match_type, c.match) for c in seen[-1].components] == [(2, None)]
            await describe_quotas(client, {"user": ANY_NAME, "client-id": None})
            assert [(c.match_type, c.match) for c in seen[-1].components] == [(2, None), (1, None)]
            code = int(ErrorCode.INVALID_REQUEST)
            with pytest.raises(OperatingError, match="Refused"):
                await describe_quotas(client, {"user": "a"})
            assert [(c.match_type, c.match) for c in seen[-1].components] == [(0, "a")]
            with pytest.raises(OperatingError, match="Refused"):
                await alter_quotas(client, {"user": "a"}, {RATE: 1.0})
    finally:
        await server.close(timeout_ms=0)
