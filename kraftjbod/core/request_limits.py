"""PURE. Limits on the work that one request of any client may cause.

A request beyond a limit gets a specific error, and its connection stays open.
"""

from __future__ import annotations

from typing import Final

MAX_ITEMS_PER_REQUEST: Final = 10_000
"""Topics, partitions, replicas or resources in one request."""
MAX_PARTITIONS_MADE_PER_REQUEST: Final = 10_000
"""New partitions in one request, of all its topics together; Kafka's number."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Limit of a response that lists configurations; the client requests the rest again."""
MAX_LOGGED_PER_REQUEST: Final = 20
"""Telemetry events about the items of one request."""

MAX_FORWARDED_ITEMS: Final = 250
"""Items of one request from a broker to the controller; longer lists are sent in parts, in turn."""
MAX_FORWARDED_BYTES: Final = 256 * 1024
"""Bytes of such a part. The broker rejects a single item that is larger."""
MAX_FORWARDED_AT_ONCE: Final = 20
"""Parts of client requests that one broker has in flight to the controller."""
MAX_ENTRIES_PER_READ: Final = 1_000
"""Entries of the metadata log in one response; a lagging node requests the next ones."""
MAX_CONFIG_VALUE_BYTES: Final = 32_767
"""Kafka's limit: old protocol versions cannot carry a longer value."""
MAX_TAGS_IN_HEADER: Final = 100

WORK_SLICE_MS: Final = 10
"""How long large requests, all together, may block the event loop without a pause."""
