"""PURE. ``--print-metrics``: formats librdkafka's statistics as the table of Kafka's tools.

The metrics differ from the Java client's. Their names are explained in
https://github.com/confluentinc/librdkafka/blob/master/STATISTICS.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_HEAD: Final = "Metric Name"


def figure_lines(statistics: str) -> Iterator[str]:
    """Yield the lines of the table, sorted by name.

    :param statistics: librdkafka's JSON document.
    """
    figures = dict(sorted(_figures("", json.loads(statistics))))
    width = max((len(name) for name in figures), default=0)
    yield ""
    yield f"{_HEAD:<{width}}   Value"
    for name, value in figures.items():
        yield (
            f"{name:<{width}} : {value:.3f}"
            if isinstance(value, float)
            else (f"{name:<{width}} : {value}")
        )


def _figures(prefix: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _figures(f"{prefix}{key}:", value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value
