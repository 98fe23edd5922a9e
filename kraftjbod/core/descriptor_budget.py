"""PURE. ``DescriptorBudget``: how a daemon divides its limit of open file descriptors.

A disk can neither be read nor written without a descriptor, so files of replicas have priority:

* The last eighth is not for clients. A connection whose descriptor is in that eighth is closed,
  unless it identifies itself as a broker's connection.
* Three quarters, less a reserve for the process, are for replicas. Each replica counts as one
  file: the one of its active segment.
* The same number limits open segment files. Beyond it the least recently used files are closed, so
  that reading old segments leaves the last quarter to connections.

The numbers are estimates. ``storage/log_dirs/log_dir_policy.py`` handles descriptor exhaustion: a
directory does not go offline because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EMFILE, ENFILE
from typing import Final

#: Errors of opening a file when the process or the machine has no free descriptor. They do not
#: indicate a disk failure.
OUT_OF_DESCRIPTORS: Final = frozenset({EMFILE, ENFILE})
#: Estimate for all other files: locks of directories, connections to controllers, telemetry.
_OF_THE_PROCESS: Final = 128
#: Used when RLIMIT_NOFILE is unlimited (RLIM_INFINITY); Linux's highest default.
_UNLIMITED: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """Division of a process's file descriptors between replicas, open segments and client
    connections.

    :param limit: RLIMIT_NOFILE of the process; negative if unlimited.
    """

    limit: int

    @property
    def max_replicas(self) -> int:
        """Number of replicas that a broker can host: 3/4 of :attr:`descriptors`, less 128."""
        return max(0, self.descriptors * 3 // 4 - _OF_THE_PROCESS)

    @property
    def max_open_segments(self) -> int:
        """Default limit of segment files that are open at once: :attr:`max_replicas`, but at least
        1.

        Beyond it the least recently used segment files are closed.
        """
        return max(1, self.max_replicas)

    @property
    def max_client_descriptor(self) -> int:
        """Highest descriptor number that a client's connection may have.

        The kernel assigns the lowest free number, so a higher number means that few are left.
        """
        return self.descriptors - self.descriptors // 8 - 1

    @property
    def descriptors(self) -> int:
        """Number of descriptors that the process may have open."""
        return _UNLIMITED if self.limit < 0 else self.limit
