"""Tests of docker-compose.yml with docker-compose.secured.yml on a real engine."""

from __future__ import annotations

import pytest

from tests.compose.compose_cluster import CONTROLLERS, SERVICES, ComposeCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

CREATE = ("--create", "--topic", "secured", "--partitions", "3")


def test_secured_compose_serves_the_administrator_and_refuses_others(
    secured_cluster: ComposeCluster,
) -> None:
    cluster = secured_cluster
    # Health checks use the certificates of nodes.
    assert {cluster.health(service) for service in SERVICES} == {"healthy"}
    admin = ("--command-config", str(cluster.user_settings("admin")))
    client = ("--command-config", str(cluster.user_settings("client")))
    with pytest.raises(AssertionError, match="kraftjbod-topics"):
        cluster.tool("topics", "--timeout", "5", *CREATE)
    with pytest.raises(AssertionError, match=r"(?i)authoriz"):
        cluster.tool("topics", *CREATE, *client)
    cluster.tool("topics", *CREATE, *admin)
    words = (
        "--add",
        "--allow-principal",
        "User:client",
        "--operation",
        "All",
        "--topic",
        "secured",
    )
    cluster.tool("acls", *words, *admin)
    cluster.wait(
        "the client to see the topic",
        lambda: cluster.tool("topics", "--list", *client) == "secured",
    )
    assert cluster.user_settings("admin").stat().st_mode & 0o777 == 0o600


def test_secured_compose_gives_each_node_its_own_keys_only(
    secured_cluster: ComposeCluster,
) -> None:
    cluster = secured_cluster
    for service in SERVICES:
        node_id = "100" if service == "controller" else service.rpartition("-")[2]
        role = "controller" if service in CONTROLLERS else "broker"
        visible = cluster.inside(service, "find", "/security", "-name", "*.pem")
        paths = {f"/security/{role}-{node_id}/{name}.pem" for name in ("ca", "node")}
        assert set(visible.split()) == paths


def test_secured_compose_broker_refuses_hosts_without_certificate(
    secured_cluster: ComposeCluster,
) -> None:
    with pytest.raises(AssertionError, match="does not serve"):
        secured_cluster.inside(
            "broker-1", "kraftjbod-health", "--timeout", "5", "--bootstrap-server", "broker-2:9091"
        )
