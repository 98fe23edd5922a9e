"""WIRE. ``build_wiring``: build the parts of a broker and connect them, without starting them.

Each wiring passes configuration values to the parts of its package. A wiring uses the wirings built
before it, and does not know later ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.broker.apis.config_apis import CheckListeners
from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.api_wiring import ApiWiring
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring, NodeDialers
from kraftjbod.daemon.wiring.directory_wiring import DirectoryWiring
from kraftjbod.daemon.wiring.group_wiring import GroupWiring
from kraftjbod.daemon.wiring.internal_wiring import InternalWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring
from kraftjbod.daemon.wiring.transaction_wiring import TransactionWiring
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits

PLAIN_DIALERS: Final = NodeDialers()


async def refuse_stores(_of_listeners: Mapping[str, str]) -> None:
    """Refuse dynamic key stores: the broker is built without listeners.

    :raises ConfigError: always.
    """
    raise ConfigError("this broker has no listeners")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerWiring:
    """All parts of a broker between its disks and its listeners."""

    cluster: ClusterWiring
    replicas: ReplicaWiring
    directories: DirectoryWiring
    internal: InternalWiring
    groups: GroupWiring
    transactions: TransactionWiring
    apis: ApiWiring


def build_wiring(
    config: BrokerConfig,
    environment: Environment,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
    tasks: BackgroundTasks,
    *,
    answers: Ledger | None = None,
    peers: ClusterPeers = EVERY_HOST_ALLOWED,
    dialers: NodeDialers = PLAIN_DIALERS,
    check_listeners: CheckListeners = refuse_stores,
) -> BrokerWiring:
    """Build the parts of one broker.

    :param advertised: the addresses for clients.
    :param tasks: runs the background tasks later.
    :param answers: limits the bytes of the responses that all listeners hold together.
    :param check_listeners: raises ConfigError if the broker cannot use dynamic key stores of its
        listeners.
    :param peers: tells which hosts are members of the cluster.
    :param dialers: open the connections to other nodes.
    """
    answers = answers or MemoryBudget(MemoryLimits()).answers
    cluster = ClusterWiring(config, environment, disks, advertised, dialers)
    replicas = ReplicaWiring(config, environment, disks, cluster, tasks)
    directories = DirectoryWiring(config, environment, disks, cluster, replicas, tasks)
    internal = InternalWiring(config, environment, cluster, replicas)
    groups = GroupWiring(config, environment, cluster, replicas, internal, tasks)
    transactions = TransactionWiring(config, environment, cluster, replicas, internal, tasks)
    environment.metrics.gauge("BackgroundJobFailures", lambda: tasks.jobs.failures)
    apis = ApiWiring(
        config,
        environment,
        disks,
        cluster,
        replicas,
        directories,
        internal,
        groups,
        transactions,
        answers,
        peers,
        check_listeners,
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
