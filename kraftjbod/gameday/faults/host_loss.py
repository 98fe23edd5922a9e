"""WIRE. Scenarios of a host without power: a broker's, and the active controller's.

Packets to the host vanish, and its peers receive neither FIN nor RST. The scenarios need a cluster
with one host per daemon (``kraftjbod-local up --hosts``). The daemon is restarted with its host.
"""

from __future__ import annotations

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.broker_kill import BrokerKill
from kraftjbod.gameday.faults.controller_faults import ControllerKill
from kraftjbod.gameday.faults.fault import CannotPlay, Target
from kraftjbod.gameday.faults.local_daemons import broker_target, busiest_broker, local_cluster_of
from kraftjbod.local import network_hosts
from kraftjbod.local.daemon_process import DaemonProcess


class BrokerHostLoss(BrokerKill):
    """A fault: power loss of the host whose broker leads most partitions of the topic."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._broker_id, mine, self._pid = await busiest_broker(client, topic)
        self._local = local_cluster_of(self._broker_id, self._pid)
        host = client.metadata.brokers[self._broker_id].host
        if self._local is None or not network_hosts.is_own_host(host):
            raise _shares_a_host(f"broker {self._broker_id}")
        what = f"broker {self._broker_id}, host {host} (its network and its process at once)"
        return broker_target(self._broker_id, mine, what)

    def inject(self) -> None:
        network_hosts.cut(self._host)
        super().inject()

    async def heal(self, client: ClusterClient) -> None:
        network_hosts.mend(self._host)
        await super().heal(client)

    @property
    def _host(self) -> str:
        assert self._local is not None, "a fault is aimed before it is injected"
        return self._local.brokers[self._broker_id].files.host


class ControllerHostLoss(ControllerKill):
    """A fault: power loss of the active controller's host."""

    how = "its network and its process at once"

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        target = await super().aim(client, topic)
        if not network_hosts.is_own_host(self._aimed.files.host):
            raise _shares_a_host(self._aimed.files.name)
        return target

    def _break(self, active: DaemonProcess) -> None:
        network_hosts.cut(active.files.host)
        super()._break(active)

    def _mend(self, active: DaemonProcess) -> None:
        network_hosts.mend(active.files.host)


def _shares_a_host(who: str) -> CannotPlay:
    return CannotPlay(
        f"{who} shares its host with other daemons: run this scenario on a cluster of "
        "kraftjbod-local up --hosts (as root)"
    )
