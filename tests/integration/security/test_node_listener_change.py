"""Brokers that change the listener between each other under load, from PLAINTEXT to SASL_SSL.

The steps are those of docs/security.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftjbod.core.jaas import SCRAM_MODULE
from tests.certificates import Authority
from tests.integration.checker import Load, judge
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import change_config, free_ports

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]
PARTITIONS = 3


def test_brokers_change_to_a_listener_with_sasl_without_downtime(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(brokers=3, dirs=1, config={"min.insync.replicas": "2"})
    cluster.create_topic("loaded", partitions=PARTITIONS, replication_factor=3)
    authority = Authority()
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("node").write_pem(tmp_path / "node.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.write_pem(tmp_path / "ca.pem")),
    }
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(f"broker-{broker_id}", info, b"secret")
        for broker_id in cluster.brokers
    ]
    for done in admin.alter_user_scram_credentials(users).values():
        done.result(60)
    ports = dict(zip(cluster.brokers, free_ports(3), strict=True))
    first = {
        broker_id: {
            "listeners": (f"PLAINTEXT://{broker.address},INTERNAL://127.0.0.1:{ports[broker_id]}"),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:SASL_SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.internal.scram-sha-512.sasl.jaas.config": (
                f'{SCRAM_MODULE} required username="broker-{broker_id}" password="secret";'
            ),
            **stores,
        }
        for broker_id, broker in cluster.brokers.items()
    }
    second = {"inter.broker.listener.name": "INTERNAL"}
    with Load(cluster.bootstrap, "loaded", PARTITIONS) as load:
        for keys in (first, dict.fromkeys(cluster.brokers, second)):
            for broker_id, broker in cluster.brokers.items():
                cluster.stop_daemon(broker)
                change_config(broker, lambda _, own=keys[broker_id]: own)
                cluster.start_daemon(broker)
                cluster.wait_whole("loaded")
                before = load.acked_by_partition()
                cluster.wait(
                    "progress in every partition", lambda since=before: load.flowed_since(since, 20)
                )
        load.stop()
    verdict = judge(cluster.bootstrap, "loaded", load)
    assert verdict.findings == []
    for broker in cluster.brokers.values():
        assert broker.events("broker_login_failed") == []
    assert cluster.bugs() == []
