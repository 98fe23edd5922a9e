"""Three controllers as processes: each start is registered, and dynamic configurations reach the
next leader."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import BIN


class Tools:
    """Tools that ask all controllers in a fixed order: some may be stopped, and most are
    followers."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.addresses = ",".join(controller.address for controller in cluster.controllers)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        done = [str(BIN / f"kraftjbod-{name}"), *words]
        return subprocess.run(done, capture_output=True, text=True, check=False, timeout=60)

    def tell(self, name: str, *words: str) -> str:
        done = self.run(name, *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def configs(self, *words: str) -> str:
        to = ("--bootstrap-controller", self.addresses, "--entity-type", "brokers")
        return self.tell("configs", *to, *words)

    def features(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("features", "--bootstrap-controller", self.addresses, *words)

    def endpoints(self) -> dict[str, dict[str, Any]]:
        to = ("--bootstrap-controller", self.addresses, "--json")
        found = json.loads(self.tell("cluster", "list-endpoints", *to))["endpoints"]
        return {f"{each['host']}:{each['port']}": each for each in found}

    def incarnations(self) -> dict[str, str | None]:
        return {at: found["incarnationId"] for at, found in self.endpoints().items()}


def _restart(cluster: LocalCluster, tools: Tools, controller: DaemonProcess) -> None:
    """Kill and restart a controller, and wait until its next incarnation is registered."""
    before = tools.incarnations()
    controller.kill()
    # It may be the active one.
    cluster.active_controller()
    assert tools.incarnations() == before, "a registration does not expire"
    controller.start()
    others = {at: one for at, one in before.items() if at != controller.address}

    def is_registered() -> bool:
        now = tools.incarnations()
        return now.pop(controller.address) != before[controller.address] and now == others

    cluster.wait("its next incarnation", is_registered)


def test_restarted_controllers_register_and_dynamic_configs_reach_next_leader() -> None:
    with LocalCluster(brokers=1, dirs=1, controllers=3, disks="plain") as cluster:
        tools = Tools(cluster)
        cluster.wait("all to be registered", lambda: None not in tools.incarnations().values())
        assert {each["isVoter"] for each in tools.endpoints().values()} == {True}
        cluster_id = tools.tell("cluster", "cluster-id", "--bootstrap-controller", tools.addresses)
        assert cluster_id == f"Cluster ID: {cluster.processes.cluster_id}\n"
        active = cluster.active_controller()
        follower = next(one for one in cluster.controllers if one is not active)
        _restart(cluster, tools, follower)

        ids = {at: str(each["id"]) for at, each in tools.endpoints().items()}
        of_all = ("--alter", "--entity-default", "--add-config")
        tools.configs(*of_all, "num.partitions=3,broker.session.timeout.ms=7000")
        for one in cluster.controllers:
            words = ("--alter", "--entity-name", ids[one.address], "--add-config")
            said = tools.configs(*words, "broker.session.timeout.ms=8000")
            assert said == f"Completed updating config for broker {ids[one.address]}.\n"
        _restart(cluster, tools, active)
        tools.tell(
            "topics", "--bootstrap-server", cluster.bootstrap_servers, "--create", "--topic", "t"
        )
        described = tools.tell(
            "topics", "--bootstrap-server", cluster.bootstrap_servers, "--describe", "--topic", "t"
        )
        assert "PartitionCount: 3" in described, "the current leader applies the configuration"
        for one in cluster.controllers:
            where = ("--describe", "--entity-name", ids[one.address])
            assert tools.configs(*where) == (
                f"Dynamic configs for broker {ids[one.address]} are:\n"
                "  broker.session.timeout.ms=8000 sensitive=false synonyms={"
                "DYNAMIC_BROKER_CONFIG:broker.session.timeout.ms=8000, "
                "DYNAMIC_DEFAULT_BROKER_CONFIG:broker.session.timeout.ms=7000, "
                "STATIC_BROKER_CONFIG:broker.session.timeout.ms=6000, "
                "DEFAULT_CONFIG:broker.session.timeout.ms=9000}\n"
            )
            assert (
                "  num.partitions=3 sensitive=false synonyms={"
                "DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=3, DEFAULT_CONFIG:num.partitions=1}"
            ) in tools.configs(*where, "--all").splitlines()

        # After the downgrade no registration is left; after the upgrade all are registered again.
        refused = tools.features("downgrade", "--metadata", "4.3-IV0")
        assert refused.returncode == 1 and "num.partitions of all nodes" in refused.stdout
        keys = "num.partitions,broker.session.timeout.ms"
        tools.configs("--alter", "--entity-default", "--delete-config", keys)
        for node_id in ids.values():
            key = "broker.session.timeout.ms"
            tools.configs("--alter", "--entity-name", node_id, "--delete-config", key)
        assert tools.features("downgrade", "--metadata", "4.3-IV0").stdout == (
            "metadata.version was downgraded to 30.\n"
        )
        assert set(tools.incarnations().values()) == {None}
        assert tools.features("upgrade", "--metadata", "4.4-IV2").returncode == 0
        cluster.wait("all to be registered", lambda: None not in tools.incarnations().values())
        for one in cluster.controllers:
            assert not one.events("controller_registration_replaced")
        assert any(one.events("controller_config_changed") for one in cluster.controllers)
