"""Generates docs/protocol.md: the APIs, their versions, and kraftjbod's extensions of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey, api_name
from kraftjbod.protocol.rpc_codec import REQUESTS
from kraftjbod.protocol.schemas.kafka_extensions import (
    FIRST_OWN_API_KEY,
    OWN_FIELDS,
    OWN_MESSAGES,
)
from tests.tidy.sources import PACKAGE

_HEAD: Final = """# Protocol

`make docs` writes this page from the tables in the code. A test compares it with them.

## Listeners of brokers

Clients and followers use Kafka's protocol. This table has the APIs that a broker serves.
The response to ApiVersions lists all of them, with two exceptions:

- AlterLogDirs is listed only for clients of kraftjbod;
- UnregisterController, which is newer than Kafka 4.3, is listed only for clients of kraftjbod and for Kafka's Java clients.

If a request has a version that is not in the table, the broker closes the connection. As in Kafka, ApiVersions is the exception: the broker answers a newer version of it in version 0.
"""
_RPC: Final = """## Listener of the controller

Brokers, controllers, and tools with `--bootstrap-controller` use kraftjbod's protocol here. A frame is one MessagePack array, and each kind of request has its own versions ([ADR 9](../kraftjbod/adr/0009-kafka-protocol-for-data-msgpack-rpc-for-control.md)).
The table has the newest version of each request. Nodes use an older version if `metadata.version` does not support the newest one. For some requests, the version also depends on the controller's software.
If the listener has SASL, a connection begins with the request Login (version 0), which is not in the table.
"""
_FIELDS: Final = """## Tagged fields that kraftjbod adds

Kafka's clients and brokers skip unknown tagged fields (KIP-482), so they understand messages with the fields of this table ([ADR 9](../kraftjbod/adr/0009-kafka-protocol-for-data-msgpack-rpc-for-control.md)).
"""
_API: Final = """## An API that kraftjbod adds

ApiVersions lists it only for clients whose software name is kraftjbod's ([ADR 9](../kraftjbod/adr/0009-kafka-protocol-for-data-msgpack-rpc-for-control.md)).
"""
_SCHEMAS: Final = (PACKAGE / "protocol/schemas/kafka_extensions.py").read_text().splitlines()


def _apis() -> Iterator[str]:
    yield "| API | key | versions |"
    yield "|---|---|---|"
    for key, (least, greatest) in sorted(SUPPORTED.items()):
        # librdkafka uses no compression unless the lowest advertised Produce is 0 (KIP-896).
        note = ", advertised from 0 on, as Kafka does" if key == ApiKey.PRODUCE else ""
        versions = f"{least} to {greatest}" if least < greatest else f"{least}"
        yield f"| {api_name(key)} | {key} | {versions}{note} |"


def _rpc_requests() -> Iterator[str]:
    yield "| request | version | purpose |"
    yield "|---|---|---|"
    for _, kind in sorted(REQUESTS.items()):
        own = kind.__doc__ if "__doc__" in vars(kind) else ""
        purpose = " ".join((own or "").partition("\n\n")[0].split())
        yield f"| {kind.api} | {kind.version} | {_code(purpose)} |"


def _own_fields() -> Iterator[str]:
    yield "| message | struct | field | type | tag | versions | meaning |"
    yield "|---|---|---|---|---|---|---|"
    for (message, struct), fields in OWN_FIELDS.items():
        begin = _SCHEMAS.index(f'    ("{message}", "{struct}"): (')
        for field in fields:
            words = _comment_above(f'            "name": "{field["name"]}",', begin)
            cells = (message, struct, field["name"], f"`{field['type']}`", str(field["tag"]))
            yield f"| {' | '.join(cells)} | {field['versions']} | {_code(words)} |"


def _own_api() -> Iterator[str]:
    yield "| message | field | type | meaning |"
    yield "|---|---|---|---|"
    for message, schema in OWN_MESSAGES.items():
        begin = _SCHEMAS.index(f'    "{message}": {{')
        for field in schema["fields"]:
            start = f'            {{"name": "{field["name"]}"'
            words = _comment_above(start, begin)
            yield f"| {message} | {field['name']} | `{field['type']}` | {_code(words)} |"


def _comment_above(start: str, after: int = 0) -> str:
    """Return the comment above the first line that begins with ``start``."""
    line = next(n for n in range(after, len(_SCHEMAS)) if _SCHEMAS[n].startswith(start))
    words: list[str] = []
    while found := re.fullmatch(r"\s*# (.+)", _SCHEMAS[line - 1]):
        words.insert(0, found[1])
        line -= 1
    return " ".join(words)


def _code(text: str) -> str:
    text = text.replace("|", "or").replace("<", "&lt;")
    return re.sub(r"``(.*?)``", r"`\1`", text)


def page() -> str:
    """Return docs/protocol.md."""
    own = f"Key {FIRST_OWN_API_KEY}, AlterLogDirs: `kraftjbod-log-dirs --reattach`, `--add`, `--forget`."
    return "\n".join(
        [
            *(_HEAD, *_apis(), ""),
            *(_RPC, *_rpc_requests(), ""),
            *(_FIELDS, *_own_fields(), ""),
            *(_API, own, "", *_own_api(), ""),
        ]
    )
