"""PURE. ``DescriptorBudget``: how a daemon divides the descriptors that it may have open.

Without a descriptor a disk can neither be read nor written, so files of replicas come first:

* An eighth is not for clients: a connection that gets a descriptor of the last eighth is refused,
  unless it shows itself as a broker's.
* Three quarters are for replicas. Each is counted with one file, that of its active segment.
* As many may be open files of segments. The least recently used are closed beyond that, so that a
  reader of old segments leaves the last quarter to connections.

The numbers are estimates. What a daemon does when descriptors run out all the same is in
``storage/log_dirs/log_dir_policy.py``: no disk is to blame.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EMFILE, ENFILE
from typing import Final

#: What opening a file fails with when the process or the machine has no descriptor left. Nothing
#: else fails with these, so no disk is to blame.
OUT_OF_DESCRIPTORS: Final = frozenset({EMFILE, ENFILE})
#: What a process has open besides: directories' locks, links to controllers, telemetry.
_OF_THE_PROCESS: Final = 128
#: Where the system names no limit (RLIM_INFINITY); Linux's highest default.
_UNLIMITED: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """:param limit: RLIMIT_NOFILE of the process; negative if there is none."""

    limit: int

    @property
    def max_replicas(self) -> int:
        """How many replicas a broker can hold."""
        return max(0, self.descriptors * 3 // 4 - _OF_THE_PROCESS)

    @property
    def max_open_segments(self) -> int:
        """How many segments of replicas may have their file open, if nothing else is configured.

        Files of segments that were not used lately are closed beyond it.
        """
        return max(1, self.max_replicas)

    @property
    def max_client_descriptor(self) -> int:
        """The highest descriptor that a client's connection may have.

        The system gives the lowest free one, so a higher one shows that they are short.
        """
        return self.descriptors - self.descriptors // 8 - 1

    @property
    def descriptors(self) -> int:
        """How many descriptors the process may have open."""
        return _UNLIMITED if self.limit < 0 else self.limit
