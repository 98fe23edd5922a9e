"""A cluster of real processes for tests: started, queried, damaged and restarted.

:class:`Cluster` wraps :class:`~kraftjbod.local.cluster_process.ClusterProcesses` of the product.
Its queries use kafka-python's admin client, so that an independent client gives the answers.

* Metadata and log directories are queried often: their client is kept, and is recreated after a
  failure. Other queries use :meth:`Cluster.admin`, with a new client each time.
* Waits have a generous deadline and fail with the daemons' last lines; no time is asserted.
* A daemon that reports a bug fails the test that ends next: :meth:`Cluster.bugs`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import MetadataRequest

from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest
from tests.integration.checker import Load

WAIT_S: Final = 60.0
KAFKA_STORAGE_ERROR: Final = 56
_POLL_S: Final = 0.1
_QUOTED_LINES: Final = 15
_QUOTED_CHARS: Final = 500
_METADATA_BYTES: Final = 8 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition as in a Metadata response."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A log directory as in a DescribeLogDirs response; ``sizes`` by ``topic-partition``."""

    path: str
    error: int
    sizes: dict[str, int]
    total_bytes: int
    usable_bytes: int


class Cluster:
    """One controller and some brokers, each of them a process."""

    def __init__(self, local: ClusterProcesses) -> None:
        self.local = local
        self._kept: Any = None

    @property
    def bootstrap(self) -> str:
        return self.local.bootstrap_servers

    @property
    def brokers(self) -> dict[int, DaemonProcess]:
        return self.local.brokers

    def start(self) -> None:
        """Start every daemon and wait until all serve."""
        asyncio.run(self.local.start(timeout_s=WAIT_S))

    def stop(self) -> None:
        """Stop all daemons in order.

        :raises AssertionError: with the daemons that had to be killed."""
        self.close()
        killed = asyncio.run(self.local.stop(timeout_s=WAIT_S))
        assert not killed, f"did not stop in {WAIT_S:.0f} s: {killed}"

    def close(self) -> None:
        """Close the kept client; the next query creates another."""
        client, self._kept = self._kept, None
        if client is not None:
            client.close()

    def wait_healthy(self) -> None:
        """Wait until every running broker serves."""
        asyncio.run(self.local.wait_healthy(timeout_s=WAIT_S))

    def stop_daemon(self, daemon: DaemonProcess) -> None:
        """Stop one daemon in order."""
        assert asyncio.run(daemon.stop(WAIT_S)), f"{daemon} did not stop in {WAIT_S:.0f} s"

    def wait_exit(self, daemon: DaemonProcess) -> int:
        """Return the exit code of a daemon that ends on its own initiative."""
        assert asyncio.run(daemon.wait_exit(WAIT_S)), (
            f"{daemon} still runs after {WAIT_S:.0f} s:\n{daemon.last_words()}"
        )
        code = daemon.exit_code
        assert code is not None
        return code

    def start_daemon(self, daemon: DaemonProcess) -> None:
        """Start one daemon and wait until all that run serve."""
        daemon.start()
        self.wait_healthy()

    @contextlib.contextmanager
    def admin(self, broker_id: int | None = None) -> Iterator[Any]:
        """Yield kafka-python's admin client, bootstrapped from one broker or from all."""
        client = self._client(broker_id)
        try:
            yield client
        finally:
            client.close()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        **config: object,
    ) -> None:
        """Create a topic and wait until every replica is in sync and on a disk.

        :param config: topic configuration, with underscores for dots. min.insync.replicas is 1
        unless given, because most tests are about brokers that are down."""
        config = {"min_insync_replicas": 1, **config}
        placement: dict[str, object] = (
            {"assignments": {index: list(ids) for index, ids in assignments.items()}}
            if assignments
            else {"num_partitions": partitions, "replication_factor": replication_factor}
        )
        configs = {key.replace("_", "."): str(value) for key, value in config.items()}
        with self.admin() as admin:
            admin.create_topics({name: {**placement, "configs": configs}})
        self.wait_whole(name)
        # The ISR of a new partition is complete from the start, before there are any files.
        self.wait(f"every replica of {name} to be on a disk", lambda: self._is_on_disks(name))

    def partitions(self, topic: str, *, ask: int | None = None) -> dict[int, Partition]:
        """Return the topic's partitions according to broker ``ask``, or to any broker."""
        running = [broker for broker, daemon in self.brokers.items() if daemon.is_running]
        broker = random.choice(running) if ask is None else ask
        answered = self._ask(ask, lambda client: _describe_topic(client, topic, broker))
        return {
            entry["partition_index"]: Partition(
                leader=entry["leader_id"],
                replicas=tuple(entry["replica_nodes"]),
                isr=tuple(sorted(entry["isr_nodes"])),
                offline=tuple(sorted(entry["offline_replicas"])),
            )
            for entry in answered["partitions"]
        }

    def directories(self, broker_id: int) -> dict[str, Directory]:
        """Return a broker's log directories by path."""
        (answered,) = self._ask(
            broker_id, lambda client: client.describe_log_dirs(brokers=[broker_id])
        )
        return {
            entry["log_dir"]: Directory(
                path=entry["log_dir"],
                error=entry["error_code"],
                sizes={
                    f"{topic['name']}-{part['partition_index']}": part["partition_size"]
                    for topic in entry["topics"]
                    for part in topic["partitions"]
                },
                total_bytes=entry["total_bytes"],
                usable_bytes=entry["usable_bytes"],
            )
            for entry in answered["log_dirs"]
        }

    def replicas_by_dir(self, broker_id: int, topic: str) -> dict[str, list[int]]:
        """Return the partitions of ``topic`` that a broker has, by directory."""
        return {
            path: sorted(
                int(name.rpartition("-")[2])
                for name in directory.sizes
                if name.rpartition("-")[0] == topic
            )
            for path, directory in self.directories(broker_id).items()
        }

    def metadata(self) -> MetadataState:
        """Return the committed metadata of the controller, as a new broker would fetch it."""
        return asyncio.run(_committed_metadata(*self.local.controller.address.split(":")))

    def wait_flowing(self, load: Load) -> None:
        """Wait until every partition of ``load`` has had some records acknowledged."""
        nothing = [0] * len(load.partitions)
        self.wait(
            "load on every partition",
            lambda: load.flowed_since(nothing, 20),
            explain=load.explain,
        )

    def wait(
        self,
        what: str,
        condition: Callable[[], object],
        *,
        timeout_s: float = WAIT_S,
        explain: Callable[[], str] = str,
    ) -> None:
        """Poll until ``condition`` is true; a client's error counts as false.

        :param explain: text to add to the daemons' last lines after a timeout.

        :raises AssertionError: with ``what``."""
        deadline = time.monotonic() + timeout_s
        trouble: object = "never true"
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except KafkaError as e:
                trouble = repr(e)
            time.sleep(_POLL_S)
        raise AssertionError(f"waited {timeout_s:.0f} s for {what}: {trouble}\n{explain()}")

    def wait_whole(self, topic: str) -> None:
        """Wait until every replica of ``topic`` is in sync."""
        self.wait(f"every replica of {topic} to be in sync", lambda: self._is_whole(topic))

    def wait_event(self, daemon: DaemonProcess, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the ``count``-th event called ``name`` of a daemon, and return it."""
        self.wait(f"event {name} of {daemon.files.name}", lambda: len(daemon.events(name)) >= count)
        return daemon.events(name)[count - 1]

    def bugs(self) -> list[str]:
        """Return events with a traceback: errors that the daemon did not expect."""
        logged = [
            f"{daemon.files.name}: {event['event']}\n{event['exception'][-_QUOTED_CHARS:]}"
            for daemon in self.local.daemons
            for event in daemon.events()
            if "exception" in event
        ]
        return list(dict.fromkeys(logged))

    def story(self) -> str:
        """Return the last lines of every daemon, for a failed test."""
        reported = []
        for daemon in self.local.daemons:
            path: Path = daemon.files.telemetry_path
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            state = "runs" if daemon.is_running else f"ended with {daemon.exit_code}"
            reported.append(f"--- {daemon.files.name} {state}; {path}")
            reported += [line[:_QUOTED_CHARS] for line in lines[-_QUOTED_LINES:]]
        return "\n".join(reported)

    def _client(self, broker_id: int | None) -> Any:
        servers = self.bootstrap if broker_id is None else self.brokers[broker_id].address
        return KafkaAdminClient(bootstrap_servers=servers.split(","), request_timeout_ms=20_000)

    def _ask(self, broker_id: int | None, question: Callable[[Any], _T]) -> _T:
        """Query with the kept client; after a failure, once more with a new one.

        The kept client may have outdated brokers, or wait before it connects again."""
        if self._kept is not None:
            with contextlib.suppress(KafkaError):
                return question(self._kept)
            self.close()
        self._kept = self._client(broker_id)
        return question(self._kept)

    def _is_on_disks(self, topic: str) -> bool:
        parts = self.partitions(topic)
        return all(
            {index for index, part in parts.items() if broker in part.replicas}
            == set(itertools.chain(*self.replicas_by_dir(broker, topic).values()))
            for broker in {broker for part in parts.values() for broker in part.replicas}
        )

    def _is_whole(self, topic: str) -> bool:
        return all(
            part.leader >= 0 and part.isr == tuple(sorted(part.replicas)) and not part.offline
            for part in self.partitions(topic).values()
        )


def read_metrics(daemon: DaemonProcess) -> dict[str, float]:
    """Return the newest metrics snapshot of a daemon.

    A daemon serves clients before it has written its first snapshot, so this waits for that.

    :raises AssertionError: if there is no snapshot in time.
    """
    path = daemon.files.metrics_path
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{daemon.files.name} has written no {path}"
        time.sleep(0.05)
    figures: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return figures


def _describe_topic(client: Any, topic: str, broker_id: int) -> dict[str, Any]:
    """Return the result of ``client.describe_topics``, but from the given broker.

    kafka-python asks any broker, independent of its bootstrap server."""
    manager = client._manager
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
    )
    answer: dict[str, Any] = manager.run(manager.send, request, broker_id).to_dict()["topics"][0]
    return answer


async def _committed_metadata(host: str, port: str) -> MetadataState:
    """Fetch committed metadata from a controller without snapshots, as in short tests."""
    backoff = ExponentialBackoff(initial_ms=20, max_ms=500, random_unit=random.random)
    client = RpcClient(host, int(port), backoff=backoff)
    state = MetadataState()
    try:
        high_watermark = 0
        while state.offset < high_watermark:
            request = FetchMetadataRequest(
                broker_id=BrokerId(0),
                fetch_offset=state.offset + 1,
                max_wait_ms=0,
                max_bytes=_METADATA_BYTES,
            )
            answer = await client.call(request, timeout_ms=int(WAIT_S * 1000))
            assert answer.snapshot_offset < 0, "the beginning of the metadata log is gone"
            for entry in answer.entries:
                state.replay(
                    decode_entry(entry.payload),
                    offset=entry.offset,
                    epoch=entry.epoch,
                    delta=MetadataDelta(),
                )
            high_watermark = answer.high_watermark
    finally:
        client.close()
    return state
