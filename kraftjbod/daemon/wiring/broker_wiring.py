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
from kraftjbod.daemon.wiring.api_wiring import ApiWiring
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring
from kraftjbod.daemon.wiring.directory_wiring import DirectoryWiring
from kraftjbod.daemon.wiring.group_wiring import GroupWiring
from kraftjbod.daemon.wiring.internal_wiring import InternalWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring
from kraftjbod.daemon.wiring.transaction_wiring import TransactionWiring
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerWiring:
    """Everything between the disks and the doors."""

    cluster: ClusterWiring
    replicas: ReplicaWiring
    directories: DirectoryWiring
    internal: InternalWiring
    groups: GroupWiring
    transactions: TransactionWiring
    apis: ApiWiring


def build_wiring(
    config: BrokerConfig,
    around: Environment,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
    tasks: BackgroundTasks,
    *,
    answers: Ledger | None = None,
    peers: ClusterPeers = EVERY_HOST_ALLOWED,
) -> BrokerWiring:
    """The parts of one broker.

    :param advertised: the addresses that clients are given.
    :param tasks: where what runs beside everything else will run.
    :param answers: what the doors may hold of them together.
    :param peers: which hosts are members of the cluster.
    """
    answers = answers or MemoryBudget(MemoryLimits()).answers
    cluster = ClusterWiring(config, around, disks, advertised)
    replicas = ReplicaWiring(config, around, disks, cluster, tasks)
    directories = DirectoryWiring(config, around, disks, cluster, replicas, tasks)
    internal = InternalWiring(config, around, cluster, replicas)
    groups = GroupWiring(config, around, cluster, replicas, internal, tasks)
    transactions = TransactionWiring(config, around, cluster, replicas, internal, tasks)
    around.metrics.gauge("BackgroundJobFailures", lambda: tasks.jobs.failures)
    apis = ApiWiring(
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
    return BrokerWiring(
        cluster=cluster,
        replicas=replicas,
        directories=directories,
        internal=internal,
        groups=groups,
        transactions=transactions,
        apis=apis,
    )
