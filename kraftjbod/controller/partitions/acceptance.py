"""PURE. ``Acceptance``: whether a replica may lead and be in sync, perhaps only as last resort.

* ACCEPTABLE: its broker is active, and its directory is online and not impaired.
* LAST_RESORT: its broker is active, but its directory is saturated or stalled (KIP-928). The
  replica has all records that it acknowledged and accepts no new ones.
* REFUSED: its broker is fenced, shutting down or gone, or its directory is offline or lost.

partition_change.py decides what follows for elections and in-sync sets.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kraftjbod.core.ids import MIGRATING_DIR, UNASSIGNED_DIR, BrokerId, DirectoryId
from kraftjbod.metadata.registrations import BrokerRegistration


class Acceptance(Enum):
    """Whether a replica may lead and be in the ISR, judged by its broker and its directory."""

    REFUSED = "refused"
    """No: the broker is not active, or the directory is not online."""
    LAST_RESORT = "last resort"
    """Only if no other replica can: the directory is saturated or stalled."""
    ACCEPTABLE = "acceptable"


AcceptanceOf = Callable[[BrokerId, DirectoryId], Acceptance]
"""Return the acceptance of the replica that a broker holds in a directory."""


def acceptance_of_directory(broker: BrokerRegistration, directory_id: DirectoryId) -> Acceptance:
    """Return the acceptance of a replica in the directory, as if its broker were active."""
    if not broker.has_online_dir(directory_id):
        return Acceptance.REFUSED
    return Acceptance.LAST_RESORT if broker.is_impaired(directory_id) else Acceptance.ACCEPTABLE


def acceptance_of(broker: BrokerRegistration | None, directory_id: DirectoryId) -> Acceptance:
    """Return the acceptance of a replica in the directory; REFUSED if ``broker`` is None
    (unknown)."""
    if broker is None or not broker.is_active:
        return Acceptance.REFUSED
    return acceptance_of_directory(broker, directory_id)


def changed_directories(
    before: BrokerRegistration, after: BrokerRegistration
) -> tuple[DirectoryId, ...]:
    """Return the ids, sorted, of the directories whose acceptance differs between two
    registrations.

    UNASSIGNED and MIGRATING are included if the acceptance of replicas without a known directory
    differs.
    """
    candidates = before.known_log_dirs | after.known_log_dirs | {UNASSIGNED_DIR, MIGRATING_DIR}
    return tuple(
        directory_id
        for directory_id in sorted(candidates)
        if acceptance_of_directory(before, directory_id)
        is not acceptance_of_directory(after, directory_id)
    )
