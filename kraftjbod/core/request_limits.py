"""PURE. What one request may make a daemon do, whoever sent it.

What is beyond a limit is answered with an error of its own; the connection stays.
"""

from __future__ import annotations

from typing import Final

MAX_ITEMS_PER_REQUEST: Final = 10_000
"""Topics, partitions, replicas or resources that one request may be about."""
MAX_PARTITIONS_MADE_PER_REQUEST: Final = 10_000
"""New partitions that one request may ask for, all its topics together; Kafka's number."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Of an answer that repeats what is configured; what comes after it is to be asked for again."""
MAX_LOGGED_PER_REQUEST: Final = 20
"""Lines of telemetry about the items of one request."""

MAX_FORWARDED_ITEMS: Final = 250
"""That a broker asks the controller for at once; more are asked for one part after the other."""
MAX_FORWARDED_BYTES: Final = 256 * 1024
"""Of such a part; an item that is larger alone is refused by the broker."""
MAX_FORWARDED_AT_ONCE: Final = 20
"""Parts of clients' requests that one broker has on the way to the controller."""
MAX_ENTRIES_PER_READ: Final = 1_000
"""Entries of the metadata log in one answer; who lags further asks again."""
MAX_CONFIG_VALUE_BYTES: Final = 32_767
"""Kafka's limit: old versions cannot carry a longer one."""
MAX_TAGS_IN_HEADER: Final = 100

WORK_SLICE_MS: Final = 10
"""How long answering large requests may hold up the loop, all of them together."""
