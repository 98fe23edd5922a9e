"""PURE. ``Acceptance``: whether a replica may lead and be in sync, or only if nobody else can.

* ACCEPTABLE: its broker is active and its directory is online and well;
* LAST_RESORT: its broker is active, but its directory is saturated or stalled (KIP-928): it holds
  all that it ever acknowledged and takes nothing more;
* REFUSED: its broker is fenced, shutting down or gone, or its directory is offline or lost.

What follows for elections and in-sync sets is said in partition_change.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from kraftjbod.core.ids import MIGRATING_DIR, UNASSIGNED_DIR, BrokerId, DirectoryId
from kraftjbod.metadata.registrations import BrokerRegistration


class Acceptance(Enum):
    REFUSED = "refused"
    LAST_RESORT = "last resort"
    ACCEPTABLE = "acceptable"


AcceptanceOf = Callable[[BrokerId, DirectoryId], Acceptance]
"""Of the replica that a broker holds in a directory."""


def acceptance_of_directory(broker: BrokerRegistration, directory_id: DirectoryId) -> Acceptance:
    """What the directory alone says of its replicas, whatever its broker is up to."""
    if not broker.has_online_dir(directory_id):
        return Acceptance.REFUSED
    return Acceptance.LAST_RESORT if broker.is_impaired(directory_id) else Acceptance.ACCEPTABLE


def acceptance_of(broker: BrokerRegistration | None, directory_id: DirectoryId) -> Acceptance:
    """Of a replica in this directory of this broker; None stands for one that nobody knows."""
    if broker is None or not broker.is_active:
        return Acceptance.REFUSED
    return acceptance_of_directory(broker, directory_id)


def changed_directories(
    before: BrokerRegistration, after: BrokerRegistration
) -> tuple[DirectoryId, ...]:
    """Directories whose replicas stand differently after a change of their broker, sorted.

    UNASSIGNED and MIGRATING are among them where what goes for replicas without a known directory
    has changed.
    """
    candidates = before.known_log_dirs | after.known_log_dirs | {UNASSIGNED_DIR, MIGRATING_DIR}
    return tuple(
        directory_id
        for directory_id in sorted(candidates)
        if acceptance_of_directory(before, directory_id)
        is not acceptance_of_directory(after, directory_id)
    )
