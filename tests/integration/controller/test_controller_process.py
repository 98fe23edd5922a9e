"""A real controller process: RPC over TCP, kill -9, restart, snapshots, a lost metadata
directory."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, FetchMetadataResponse
from kraftjbod.storage.identity.bootstrap import write_bootstrap
from kraftjbod.storage.meta_properties import MetaProperties, write_meta_properties
from kraftjbod.storage.vfs import RealVfs

pytestmark = pytest.mark.process

_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_TIMEOUT_MS = 10_000


def _dir(letter: str) -> DirectoryId:
    return DirectoryId(letter.encode().rjust(16, b"~"))


class Controller:
    """One controller process and a client of it."""

    def __init__(self, root: Path, **overrides: object) -> None:
        self.metadata_dir = root / "metadata"
        self._config = root / "controller.properties"
        self._command = (sys.executable, "-m", "kraftjbod.daemon.controller_server", self._config)
        self._telemetry = root / "telemetry.json"
        self._overrides = overrides
        self.process: asyncio.subprocess.Process | None = None
        self.client: RpcClient | None = None
        self.epochs: dict[int, BrokerEpoch] = {}

    def format(self) -> None:
        self.metadata_dir.mkdir()
        properties = MetaProperties(
            cluster_id=_CLUSTER_ID, node_id=BrokerId(100), directory_id=_dir("m")
        )
        write_meta_properties(RealVfs(), str(self.metadata_dir), properties)
        write_bootstrap(RealVfs(), str(self.metadata_dir), {"metadata.version": 17})

    def configure(self) -> None:
        keys: dict[str, object] = {
            "process.roles": "controller",
            "node.id": 100,
            "controller.quorum.voters": "100@127.0.0.1:9",
            "listeners": "CONTROLLER://127.0.0.1:0",
            "log.dirs": self.metadata_dir,
            "telemetry.path": self._telemetry,
            **self._overrides,
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    async def refusal(self) -> str:
        """Return the output of a start that fails with the exit code for inconsistent storage."""
        self.configure()
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE
        )
        _, printed = await self.process.communicate()
        assert self.process.returncode == 65
        return printed.decode()

    async def start(self) -> None:
        self.configure()
        self._telemetry.unlink(missing_ok=True)
        self.process = await asyncio.create_subprocess_exec(*self._command)
        while not (started := self.events("controller_started")):
            assert self.process.returncode is None, self._telemetry.read_text()
            await asyncio.sleep(0.02)
        backoff = ExponentialBackoff(initial_ms=10, max_ms=100, random_unit=random.random)
        self.client = RpcClient("127.0.0.1", started[0]["port"], backoff=backoff)

    def events(self, name: str) -> list[dict[str, Any]]:
        if not self._telemetry.exists():
            return []
        lines = self._telemetry.read_text().splitlines(keepends=True)
        printed = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in printed if event["event"] == name]

    async def end(self, signum: signal.Signals) -> int:
        assert self.process is not None
        if self.client is not None:
            self.client.close()
        if self.process.returncode is None:
            self.process.send_signal(signum)
        return await self.process.wait()

    async def call(self, request: m.RpcRequest) -> Any:
        assert self.client is not None
        return await self.client.call(request, timeout_ms=_TIMEOUT_MS)

    async def register(self, broker_id: int, dirs: str, incarnation: str = "i") -> None:
        response = await self.call(
            m.BrokerRegistrationRequest(
                broker_id=BrokerId(broker_id),
                cluster_id=_CLUSTER_ID,
                incarnation_id=Uuid(f"{incarnation}{broker_id}".encode().rjust(16, b"~")),
                listeners=(m.ListenerInfo(name="PLAINTEXT", host="127.0.0.1", port=9092),),
                log_dirs=tuple(map(_dir, dirs)),
            )
        )
        self.epochs[broker_id] = response.broker_epoch

    async def heartbeat(self, broker_id: int, offline: str = "") -> m.BrokerHeartbeatResponse:
        response: m.BrokerHeartbeatResponse = await self.call(
            m.BrokerHeartbeatRequest(
                broker_id=BrokerId(broker_id),
                broker_epoch=self.epochs[broker_id],
                current_metadata_offset=1_000_000,
                want_fence=False,
                want_shut_down=False,
                offline_log_dirs=tuple(map(_dir, offline)),
            )
        )
        return response

    async def create(self, name: str, *replicas: tuple[int, ...]) -> m.CreatedTopic:
        assignments = {i: tuple(map(BrokerId, each)) for i, each in enumerate(replicas)}
        topic = m.NewTopic(name=name, assignments=assignments)
        response = await self.call(m.CreateTopicsRequestRpc(topics=(topic,)))
        created: m.CreatedTopic = response.topics[0]
        assert created.error_code == ErrorCode.NONE, created
        return created

    async def fetch(self, **fields: Any) -> FetchMetadataResponse:
        wanted = {"max_wait_ms": 0, "max_bytes": 1_000_000, "fetch_offset": 0, **fields}
        response: FetchMetadataResponse = await self.call(
            FetchMetadataRequest(broker_id=BrokerId(1), **wanted)
        )
        return response

    async def whole_state(self) -> MetadataState:
        """Return the state that a new broker would arrive at."""
        state = MetadataState()
        response = await self.fetch()
        if response.snapshot_offset >= 0:
            last, payload = response.snapshot_offset, response.snapshot_chunk
            while response.snapshot_next_position >= 0:
                response = await self.fetch(
                    snapshot_offset=last, snapshot_position=response.snapshot_next_position
                )
                payload += response.snapshot_chunk
            state.replay(decode_entry(payload), offset=last, epoch=0, delta=MetadataDelta())
        while (response := await self.fetch(fetch_offset=state.offset + 1)).entries:
            for entry in response.entries:
                state.replay(
                    decode_entry(entry.payload),
                    offset=entry.offset,
                    epoch=entry.epoch,
                    delta=MetadataDelta(),
                )
        return state


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    node = Controller(tmp_path)
    node.format()
    await node.start()
    yield node
    await node.end(signal.SIGKILL)


async def _two_brokers(node: Controller) -> m.CreatedTopic:
    for broker_id, dirs in ((1, "a"), (2, "b")):
        await node.register(broker_id, dirs)
        assert not (await node.heartbeat(broker_id)).is_fenced
    return await node.create("t", (1, 2), (2, 1))


async def test_killed_controller_restarts_with_all_metadata(controller: Controller) -> None:
    await _two_brokers(controller)
    before = await controller.whole_state()
    await controller.end(signal.SIGKILL)
    await controller.start()
    after = await controller.whole_state()
    assert (after.brokers, after.topics) == (before.brokers, before.topics)
    assert after.epoch == before.epoch + 1
    assert not (await controller.heartbeat(1)).is_fenced


async def test_controller_answers_waiting_fetches_at_a_clean_stop(controller: Controller) -> None:
    waiting = asyncio.create_task(controller.fetch(fetch_offset=2, max_wait_ms=60_000))
    await controller.fetch()
    assert controller.process is not None
    controller.process.send_signal(signal.SIGTERM)
    assert not (await waiting).entries
    assert await controller.process.wait() == 0


async def test_waiting_metadata_fetch_returns_the_next_entry(controller: Controller) -> None:
    end = (await controller.fetch()).high_watermark
    waiting = asyncio.create_task(controller.fetch(fetch_offset=end + 1, max_wait_ms=60_000))
    await controller.register(1, "a")
    assert [entry.offset for entry in (await waiting).entries] == [end + 1]


async def test_offline_directory_moves_leaders_and_is_known_after_restart(
    controller: Controller,
) -> None:
    await controller.register(1, "ac")
    await controller.heartbeat(1)
    await controller.register(2, "b")
    await controller.heartbeat(2)
    topic = await controller.create("t", (1, 2))
    assigned = m.AssignedTopic(topic_id=topic.topic_id, partitions=(0,))
    await controller.call(
        m.AssignReplicasToDirsRequest(
            broker_id=BrokerId(1),
            broker_epoch=controller.epochs[1],
            directories=(m.AssignedDirectory(directory_id=_dir("a"), topics=(assigned,)),),
        )
    )
    await controller.heartbeat(1, offline="a")
    state = await controller.whole_state()
    partition = state.topics[topic.topic_id].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2,))
    assert state.brokers[BrokerId(1)].log_dirs == (_dir("c"),)
    assert controller.events("broker_log_dirs_offline")
    await controller.end(signal.SIGKILL)
    await controller.start()
    await controller.heartbeat(1, offline="a")
    with pytest.raises(OperatingError) as refused:
        await controller.heartbeat(1, offline="x")
    assert refused.value.code == ErrorCode.LOG_DIR_NOT_FOUND


async def test_broker_without_heartbeats_is_fenced(tmp_path: Path) -> None:
    node = Controller(tmp_path, **{"broker.session.timeout.ms": 600})
    node.format()
    await node.start()
    await node.register(1, "a")
    await node.heartbeat(1)
    while not node.events("broker_fenced"):
        await asyncio.sleep(0.05)
    assert node.events("broker_session_expired")
    while (
        not (await node.whole_state()).brokers[BrokerId(1)].fenced
    ):  #  The event comes before the commit.
        await asyncio.sleep(0.05)
    await node.end(signal.SIGKILL)


async def test_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    limits = {
        "metadata.log.max.record.bytes.between.snapshots": 4000,
        "metadata.log.segment.bytes": 1024,
        "metadata.log.retained.entries": 1,
        "metadata.max.cached.bytes": 1024,
        "metadata.max.fetch.bytes": 1024,
    }
    node = Controller(tmp_path, **limits)
    node.format()
    await node.start()
    await _two_brokers(node)
    for number in range(60):
        await node.create(f"topic-{number}", (1, 2))
    more = itertools.count(60)
    while len(node.events("metadata_snapshot_written")) < 2:
        await node.create(f"topic-{next(more)}", (1,))
    before = await node.whole_state()
    log_dir = node.metadata_dir / "__cluster_metadata-0"
    assert list(log_dir.glob("*.checkpoint"))
    assert (await node.fetch()).snapshot_offset >= 0
    await node.end(signal.SIGKILL)
    await node.start()
    after = await node.whole_state()
    assert after.topics == before.topics
    assert await node.end(signal.SIGTERM) == 0


async def test_lost_metadata_dir_exits_with_74(controller: Controller) -> None:
    (controller.metadata_dir / "meta.properties").unlink()
    assert controller.process is not None
    assert await controller.process.wait() == 74
    assert controller.events("storage_lost")


async def test_start_fails_with_corruption_in_the_middle_of_the_log(tmp_path: Path) -> None:
    node = Controller(tmp_path)
    node.format()
    await node.start()
    await _two_brokers(node)
    await node.end(signal.SIGKILL)
    path = node.metadata_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert f"{path} is damaged" in await node.refusal()


async def test_start_fails_with_directory_of_another_cluster(tmp_path: Path) -> None:
    node = Controller(tmp_path, **{"cluster.id": "AAAAAAAAAAAAAAAAAAAAAQ"})
    node.format()
    assert f"belongs to cluster {_CLUSTER_ID}" in await node.refusal()
