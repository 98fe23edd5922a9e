"""Wiring of a broker's request handlers."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.protocol.kafka_codec import ApiKey, RequestHeader, message
from tests.unit.broker.broker_rig import CONNECTION
from tests.unit.daemon.daemon_rig import wiring_on


async def test_wired_apis_answer_requests_from_the_brokers_parts(tmp_path: Path) -> None:
    request = message("DescribeLogDirsRequest")
    header = RequestHeader(
        api_key=ApiKey.DESCRIBE_LOG_DIRS, api_version=4, correlation_id=1, client_id="test"
    )
    async with wiring_on(tmp_path) as wiring:
        answer = await wiring.apis.kafka.handle(header, request(topics=None), CONNECTION)
    assert [result.log_dir for result in answer.results] == [str(tmp_path / "d1")]
