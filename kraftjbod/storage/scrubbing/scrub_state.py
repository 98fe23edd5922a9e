"""PURE. How far the scrub of one log dir is: ``.kraftjbod_scrub`` in that dir, as JSON.

* A pass goes through the replicas by name and through each replica's segments by offset; the
  position is what comes next. Replicas that come into being after the position wait for the next
  pass: all they have is new.
* The file is a convenience: one that is absent or cannot be read means that no pass was ever made.

Instants are wall milliseconds, because they outlive the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.core.ids import TopicPartition

_VERSION: Final = 1


class ScrubPosition(NamedTuple):
    """Segments before it in this order have been checked."""

    topic_partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubState:
    """``began_ms`` is of the pass under way, or of the last one if ``position`` is None."""

    began_ms: int = -1
    #: Of the last pass that came to its end; -1 if none ever did.
    completed_ms: int = -1
    #: Damaged stretches that the pass of ``began_ms`` found.
    damages: int = 0
    position: ScrubPosition | None = None

    @property
    def is_under_way(self) -> bool:
        """A pass has begun and not come to its end."""
        return self.began_ms > self.completed_ms

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """A pass is to go on, or to begin; a clock that was set back does not put it off."""
        if self.is_under_way or self.completed_ms < 0:
            return True
        return not self.began_ms <= now_ms < self.began_ms + interval_ms


def format_scrub_state(state: ScrubState) -> bytes:
    position = None
    if state.position is not None:
        (topic, partition), offset = state.position
        position = {"topic": topic, "partition": partition, "offset": offset}
    values = {
        "version": _VERSION,
        "beganMs": state.began_ms,
        "completedMs": state.completed_ms,
        "damages": state.damages,
        "next": position,
    }
    return json.dumps(values, indent=2).encode() + b"\n"


def parse_scrub_state(data: bytes | None) -> ScrubState:
    """The state in ``data``; as if there had been no pass, if there is none."""
    try:
        values = json.loads(data or b"")
        if values["version"] != _VERSION:
            return ScrubState()
        position = None
        if (following := values["next"]) is not None:
            tp = TopicPartition(str(following["topic"]), int(following["partition"]))
            position = ScrubPosition(tp, int(following["offset"]))
        return ScrubState(
            began_ms=int(values["beganMs"]),
            completed_ms=int(values["completedMs"]),
            damages=int(values["damages"]),
            position=position,
        )
    except (ValueError, KeyError, TypeError):
        return ScrubState()
