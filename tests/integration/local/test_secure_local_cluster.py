"""Clusters with a secure listener for clients, by ``LocalCluster``."""

from __future__ import annotations

import confluent_kafka
import pytest

from kraftjbod.local.cluster_security import Security
from kraftjbod.testing import LocalCluster
from tests.integration.security.listeners import RECORDS, produce_and_consume

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(180)]

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.mark.parametrize("security", ["ssl", "sasl_ssl", "sasl_plaintext"])
def test_secure_local_cluster_serves_its_users_and_refuses_strangers(security: Security) -> None:
    with LocalCluster(brokers=2, dirs=1, disks="plain", security=security) as cluster:
        cluster.create_topic("orders", partitions=2)
        assert len(produce_and_consume(cluster.client_config, "orders")) == RECORDS
        # The disks are observed by the super user.
        assert cluster.broker(1).dir(0).state == "online"
        allowed = cluster.client_config
        stranger = {
            "bootstrap.servers": allowed["bootstrap.servers"],
            "security.protocol": "SSL" if security == "ssl" else "PLAINTEXT",
            **({"ssl.ca.location": allowed["ssl.ca.location"]} if security == "ssl" else {}),
        }
        client = confluent_kafka.Producer({**stranger, "log_level": 0})
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=3)


def test_secure_local_cluster_with_authorizer_shows_topics_to_the_super_user_only() -> None:
    config = {"authorizer.class.name": AUTHORIZER}
    with LocalCluster(
        brokers=1, dirs=1, disks="plain", security="sasl_plaintext", config=config
    ) as cluster:
        cluster.create_topic("orders")
        found = confluent_kafka.Producer(cluster.client_config).list_topics(timeout=30)
        assert "orders" not in found.topics
        found = confluent_kafka.Producer(cluster.client_config_of("admin")).list_topics(timeout=30)
        assert "orders" in found.topics
