"""Hosts that a broker and a controller treat as members of the cluster."""

from __future__ import annotations

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.daemon.wiring.member_hosts import (
    hosts_known_to_broker,
    hosts_known_to_controller,
)
from kraftjbod.metadata.records import Listener, RegisterBrokerRecord, RegisterControllerRecord
from kraftjbod.metadata.state import MetadataDelta, MetadataState

BROKER = BrokerConfig.from_properties(
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "100@c1:9090,101@10.0.0.2:9090",
        "listeners": "INNER://10.0.1.1:9092,OUTER://:9093",
        "advertised.listeners": "INNER://b1:9092,OUTER://lb.example.org:9093",
        "inter.broker.listener.name": "INNER",
        "log.dirs": "/d",
    },
    source="b",
    base_dir="/",
)
CONTROLLER = ControllerConfig.from_properties(
    {
        "process.roles": "controller",
        "node.id": "100",
        "controller.quorum.voters": "100@c1:9090,101@10.0.0.2:9090",
        "listeners": "CONTROLLER://[::]:9090",
        "log.dirs": "/d",
    },
    source="c",
    base_dir="/",
)


class Cluster:
    """Metadata with registrations."""

    def __init__(self) -> None:
        self.state = MetadataState()

    def register_broker(self, broker_id: int, **hosts: str) -> None:
        record = RegisterBrokerRecord(
            broker_id=BrokerId(broker_id),
            broker_epoch=BrokerEpoch(self.state.offset + 1),
            incarnation_id=Uuid(bytes(16)),
            listeners=tuple(
                Listener(name=name, host=host, port=9092) for name, host in hosts.items()
            ),
            rack=None,
            fenced=False,
            in_controlled_shutdown=False,
            log_dirs=(DirectoryId(bytes(15) + b"\x07"),),
        )
        self._replay(record)

    def register_controller(self, host: str) -> None:
        record = RegisterControllerRecord(
            controller_id=BrokerId(102),
            incarnation_id=Uuid(bytes(16)),
            directory_id=DirectoryId(bytes(15) + b"\x07"),
            listeners=(Listener(name="CONTROLLER", host=host, port=9090),),
            features=(),
            software_version="",
        )
        self._replay(record)

    def _replay(self, record: RegisterBrokerRecord | RegisterControllerRecord) -> None:
        offset = self.state.offset + 1
        self.state.replay((record,), offset=offset, epoch=1, delta=MetadataDelta())


def test_member_hosts_of_broker_are_inter_broker_listeners_and_controllers() -> None:
    cluster = Cluster()
    hosts = hosts_known_to_broker(BROKER, lambda: cluster.state)
    configured = {"c1", "10.0.0.2", "10.0.1.1", "b1"}
    assert hosts() == configured, "without the load balancer for clients"
    cluster.register_broker(2, INNER="b2", OUTER="lb.example.org")
    cluster.register_controller("c3")
    assert hosts() == configured | {"b2", "c3"}


def test_member_hosts_of_controller_are_all_listeners_and_quorum() -> None:
    cluster, quorum = Cluster(), ["c4"]
    hosts = hosts_known_to_controller(CONTROLLER, lambda: cluster.state, lambda: quorum)
    assert hosts() == {"c1", "10.0.0.2", "c4"}
    cluster.register_broker(2, INNER="b2", OUTER="10.0.0.9")
    quorum.append("c5")
    assert hosts() == {"c1", "10.0.0.2", "c4", "c5", "b2", "10.0.0.9"}


def test_member_hosts_are_the_same_object_until_they_change() -> None:
    cluster = Cluster()
    hosts = hosts_known_to_broker(BROKER, lambda: cluster.state)
    cluster.register_broker(2, INNER="b2")
    before = hosts()
    cluster.register_broker(2, INNER="b2")
    assert hosts() is before
    cluster.register_broker(2, INNER="b3")
    assert hosts() is not before
    assert "b2" not in hosts()
