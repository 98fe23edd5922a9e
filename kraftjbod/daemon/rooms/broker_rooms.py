"""WIRE. The parts of a broker, built room by room and connected; nothing runs yet.

Each part gets the few values of the configuration that it needs, in its room and nowhere else.
A room is built on those before it, and knows nothing of those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.rooms.api_room import ApiRoom
from kraftjbod.daemon.rooms.broker_disks import BrokerDisks
from kraftjbod.daemon.rooms.cluster_room import ClusterRoom
from kraftjbod.daemon.rooms.directory_room import DirectoryRoom
from kraftjbod.daemon.rooms.group_room import GroupRoom
from kraftjbod.daemon.rooms.internal_room import InternalRoom
from kraftjbod.daemon.rooms.replica_room import ReplicaRoom
from kraftjbod.daemon.rooms.transaction_room import TransactionRoom
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRooms:
    """Everything between the disks and the doors."""

    cluster: ClusterRoom
    replicas: ReplicaRoom
    directories: DirectoryRoom
    internal: InternalRoom
    groups: GroupRoom
    transactions: TransactionRoom
    apis: ApiRoom


def build_rooms(
    config: BrokerConfig,
    around: Environment,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
    tasks: BackgroundTasks,
    *,
    answers: Ledger | None = None,
    peers: ClusterPeers = EVERY_HOST_ALLOWED,
) -> BrokerRooms:
    """The parts of one broker.

    :param advertised: the addresses that clients are given.
    :param tasks: where what runs beside everything else will run.
    :param answers: what the doors may hold of them together.
    :param peers: which hosts are members of the cluster.
    """
    answers = answers or MemoryBudget(MemoryLimits()).answers
    cluster = ClusterRoom(config, around, disks, advertised)
    replicas = ReplicaRoom(config, around, disks, cluster, tasks)
    directories = DirectoryRoom(config, around, disks, cluster, replicas, tasks)
    internal = InternalRoom(config, around, cluster, replicas)
    groups = GroupRoom(config, around, cluster, replicas, internal, tasks)
    transactions = TransactionRoom(config, around, cluster, replicas, internal, tasks)
    around.metrics.gauge("BackgroundJobFailures", lambda: tasks.jobs.failures)
    apis = ApiRoom(
        config,
        around,
        disks,
        cluster,
        replicas,
        directories,
        internal,
        groups,
        transactions,
        answers,
        peers,
    )
    return BrokerRooms(
        cluster=cluster,
        replicas=replicas,
        directories=directories,
        internal=internal,
        groups=groups,
        transactions=transactions,
        apis=apis,
    )
