"""Tests that the codecs return a message or raise ``RemoteProtocolError`` for any bytes.

A decoded message is encoded and decoded again and must stay the same.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol import rpc_codec
from tests.each_case import each_case
from tests.fuzz.kafka_frames import EVERY_VERSION, KafkaFrames, make
from tests.fuzz.mutations import spoilt
from tests.fuzz.rpc_frames import RpcAnswers, RpcFrames
from tests.fuzz.values import Values, World

SEEDS = (1, 2, 3)
FRAMES = 8_000


@each_case("seed", SEEDS)
def test_kafka_codec_decodes_or_refuses_spoilt_requests(seed: int) -> None:
    frames = KafkaFrames(Values(random.Random(seed), World()))
    sound = 0
    for _ in range(FRAMES):
        try:
            header, body = codec.decode_request(frames.next().data)
        except RemoteProtocolError:
            continue
        if body is not None:
            once = _encoded(header.api_version, body)
            again = codec.decode_request(once)[1]
            assert _encoded(header.api_version, again) == once, (header, body)
            sound += 1
    assert sound > FRAMES // 4


def _encoded(version: int, body: Any) -> bytes:
    buffers = codec.encode_request(body, version=version, correlation_id=1, client_id="fuzz")
    return b"".join(buffers)[4:]


@each_case("seed", SEEDS)
def test_kafka_codec_decodes_or_refuses_spoilt_responses(seed: int) -> None:
    """Followers decode the responses of other brokers, so a malformed one must not crash them."""
    rng = random.Random(seed)
    values = Values(rng, World())
    outcomes = {True: 0, False: 0}
    for _ in range(FRAMES // 4):
        (key, version), (other_key, other_version) = rng.choices(EVERY_VERSION, k=2)
        wrong = spoilt(
            rng, _answer(values, key, version), _answer(values, other_key, other_version)
        )
        try:
            codec.decode_response(wrong, api_key=key, version=version)
        except RemoteProtocolError:
            outcomes[False] += 1
        else:
            outcomes[True] += 1
    assert all(outcomes.values())


def _answer(values: Values, key: int, version: int) -> bytes:
    header = codec.RequestHeader(key, version, 1, None)
    while True:
        body = make(values, codec.api_name(key) + "Response", version)
        try:
            return b"".join(codec.encode_response(header, body))[4:]
        except codec.LocalProtocolError:
            continue  # A text is too long for an old version.


@each_case("seed", SEEDS)
def test_rpc_codec_decodes_or_refuses_spoilt_requests(seed: int) -> None:
    frames = RpcFrames(Values(random.Random(seed), World()))
    sound = 0
    for _ in range(FRAMES):
        try:
            request = rpc_codec.decode_request(frames.next().data)
        except RemoteProtocolError:
            continue
        if request.body is not None:
            once = rpc_codec.encode_request(1, request.body)[4:]
            assert rpc_codec.decode_request(once).body == request.body
            sound += 1
    assert sound > FRAMES // 4


@each_case("seed", SEEDS)
def test_rpc_codec_decodes_or_refuses_spoilt_responses(seed: int) -> None:
    """A valid response survives a round trip, and an error response is returned as an error.

    Any other response raises ``RemoteProtocolError``.
    """
    rng = random.Random(seed)
    answers = RpcAnswers(Values(rng, World()))
    outcomes: Counter[str] = Counter()
    for _ in range(FRAMES // 4):
        data, kind = answers.next()
        try:
            answer = rpc_codec.decode_response(data)
            if answer.error is not None:
                outcomes["error"] += 1
                continue
            body = answer.parse(kind)
        except RemoteProtocolError:
            outcomes["refused"] += 1
            continue
        once = rpc_codec.encode_response(answer.correlation_id, body)[4:]
        assert rpc_codec.decode_response(once).parse(kind) == body
        outcomes["sound"] += 1
    assert outcomes["sound"] > FRAMES // 16, outcomes
    assert min(outcomes["error"], outcomes["refused"]) > FRAMES // 80, outcomes
