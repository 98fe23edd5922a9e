"""PURE. ``.kraftjbod_scrub``: progress of one directory's scrub, in that directory, as JSON.

* A pass goes through the replicas by name and through each replica's segments by offset. The
  position is the next segment. Replicas created before the position wait for the next pass, because
  all their segments are new.
* A missing or unreadable file means that no pass was ever made.

Times are wall clock milliseconds, because they outlive the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.core.ids import TopicPartition

_VERSION: Final = 1


class ScrubPosition(NamedTuple):
    """Next offset to check. All segments of the pass before this position have been checked."""

    topic_partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubState:
    """Progress of the scrub of one directory, stored in that directory. Times are wall-clock ms.

    ``began_ms`` is the start of the running pass, or of the last one if none is running.
    ``position`` is None if no pass is running, or if the pass has not checked a segment yet.
    """

    began_ms: int = -1
    #: End of the last completed pass; -1 if there is none.
    completed_ms: int = -1
    #: Damaged parts that the pass of ``began_ms`` found.
    damages: int = 0
    position: ScrubPosition | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a pass was started and not completed."""
        return self.began_ms > self.completed_ms

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether to continue or start a pass.

        Setting the clock back does not delay a pass.

        :param now_ms: wall-clock time.
        """
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
    """Parse the content of the file. Return the initial state if it is missing or unreadable."""
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
