"""Without ``cluster.action.allowed.hosts`` only registered hosts are members.

Each daemon has a separate host address, so that no request comes from loopback.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from kraftjbod.core.allowed_hosts import ALLOWED_HOSTS_KEY
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.local import network_hosts
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ListenerInfo,
)
from tests.integration import checker, raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def set_allowed(daemon: DaemonProcess, hosts: str | None) -> None:
    """Rewrite the daemon's configuration file; None removes the key."""
    path = daemon.files.config_path
    kept = [
        line for line in path.read_text().splitlines() if not line.startswith(ALLOWED_HOSTS_KEY)
    ]
    if hosts is not None:
        kept.append(f"{ALLOWED_HOSTS_KEY}={hosts}")
    path.write_text("\n".join(kept) + "\n")


def restart_all(cluster: Cluster) -> None:
    cluster.stop()
    cluster.start()


def forged_heartbeat(metadata: MetadataState) -> BrokerHeartbeatRequest:
    """Return a heartbeat that asks the controller to fence broker 1."""
    return BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=metadata.brokers[BrokerId(1)].epoch,
        current_metadata_offset=0,
        want_fence=True,
        want_shut_down=False,
    )


def forged_registration(cluster: Cluster) -> BrokerRegistrationRequest:
    """Return a registration that replaces broker 2 at a foreign address."""
    return BrokerRegistrationRequest(
        broker_id=BrokerId(2),
        cluster_id=cluster.local.cluster_id,
        incarnation_id=Uuid.random(os.urandom),
        listeners=(ListenerInfo(name="PLAINTEXT", host="203.0.113.66", port=9092),),
    )


def test_default_members_are_registered_hosts_only(make_cluster: MakeCluster) -> None:
    """This machine's address is no member; brokers replicate between each other meanwhile."""
    cluster = make_cluster(brokers=2, dirs=1, hosts=True)
    for daemon in cluster.local.daemons:
        set_allowed(daemon, None)
    metadata = cluster.metadata()
    restart_all(cluster)
    cluster.create_topic("orders", assignments={0: [1, 2], 1: [2, 1]}, min_insync_replicas=2)
    with Load(cluster.bootstrap, "orders", 2) as load:
        cluster.wait_flowing(load)
        fenced = len(cluster.local.controller.events("broker_fenced"))
        for request in (forged_heartbeat(metadata), forged_registration(cluster)):
            answer = raw.rpc(cluster.local.controller.address, request)
            assert answer.error is not None and answer.error.code is REFUSED, answer
        refused = raw.exchange(cluster.brokers[1].address, m.AddPartitionsToTxnRequest(), 4)
        assert refused.error_code == REFUSED
        load.stop()
    assert judge(cluster.bootstrap, "orders", load).findings == []
    _write_a_transaction(cluster)
    assert len(cluster.local.controller.events("broker_fenced")) == fenced


def _write_a_transaction(cluster: Cluster) -> None:
    """Brokers send each other verifications and markers of the transaction."""
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for index in (0, 1):
        producer.produce("orders", b"in a transaction", partition=index)
    producer.commit_transaction(WAIT_S)

    def is_visible(index: int) -> bool:
        found = checker.read(cluster.bootstrap, "orders", index)
        return any(value == b"in a transaction" for _, value in found)

    for index in (0, 1):
        cluster.wait("the committed record", partial(is_visible, index))


def test_broker_on_unknown_host_waits_until_controllers_allow_it(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1, dirs=1, hosts=True, start=False)
    controller, broker = cluster.local.controller, cluster.brokers[1]
    set_allowed(controller, None)
    network_hosts.make(cluster.local.own_hosts)
    cluster.local.format_directories()
    controller.start()
    broker.start()
    failed = cluster.wait_event(broker, "broker_registration_failed")
    assert failed["code"] == REFUSED.name
    assert f"name it in {ALLOWED_HOSTS_KEY} in the file of the daemon that" in failed["reason"]
    assert broker.files.host in failed["reason"]
    refused = cluster.wait_event(controller, "cluster_action_refused")
    assert refused["peer"].startswith(f"{broker.files.host}:")
    # The operator allows the host; the broker needs no restart.
    cluster.stop_daemon(controller)
    set_allowed(controller, broker.files.host)
    controller.start()
    cluster.wait_healthy()
