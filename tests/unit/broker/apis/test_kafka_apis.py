"""Every API that is advertised has a handler."""

from __future__ import annotations

from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey, RequestHeader, message
from tests.unit.broker.broker_rig import CONNECTION, brokers


async def test_every_advertised_api_has_a_handler() -> None:
    names = {
        key: "".join(word.capitalize() for word in key.name.split("_")) + "Request"
        for key in ApiKey
        if key is not ApiKey.API_VERSIONS  # The server answers this request.
    }
    assert names.keys() | {ApiKey.API_VERSIONS} == SUPPORTED.keys()
    async with brokers() as (rig,):
        for key, name in names.items():
            header = RequestHeader(key, SUPPORTED[key][1], 0, "test")
            answer = await rig.parts.kafka.handle(header, message(name)(), CONNECTION)
            # A Produce request with default values expects no response.
            assert (answer is None) == (key is ApiKey.PRODUCE), name
