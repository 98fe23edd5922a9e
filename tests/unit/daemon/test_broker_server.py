"""Start and stop of the broker daemon, in this process and as a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    KafkaStorageError,
    StartupError,
)
from kraftjbod.core.ids import NO_INCARNATION, Uuid
from kraftjbod.core.properties import format_properties
from kraftjbod.daemon.broker_server import BrokerServer
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.runner import (
    EXIT_CLEAN,
    EXIT_CLUSTER_UNREACHABLE,
    EXIT_CONFIG,
    EXIT_INCONSISTENT_STORAGE,
    EXIT_LOG_DIRS_LOST,
    EXIT_METADATA_DIR_LOST,
    EXIT_REFUSED,
    EXIT_STARTUP,
)
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.kafka_codec import Message
from kraftjbod.protocol.messages import (
    DescribeLogDirsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
)
from kraftjbod.protocol.rpc_messages import BrokerRegistrationRequest
from tests.faults.rig import batch
from tests.unit.daemon.daemon_rig import (
    PATIENCE_S,
    broker_config,
    broker_properties,
    controller,
    format_disk,
    free_port,
    taken_port,
)

PRODUCE, FETCH = ProduceRequest, FetchRequest
METADATA = MetadataRequest
TIMEOUT_MS = 5_000


@contextlib.asynccontextmanager
async def serving(config: BrokerConfig) -> AsyncIterator[BrokerServer]:
    """Start a broker, and stop it in order afterwards."""
    server = BrokerServer(config, Environment())
    async with asyncio.timeout(PATIENCE_S):
        try:
            await server.start()
            yield server
        finally:
            await server.stop()
            # The threads of the directories release the locks when they end, and a process waits
            # for them.
            while any(map(is_locked, (*config.data_dirs, config.metadata_dir))):
                await asyncio.sleep(0.01)


def is_locked(path: str) -> bool:
    with open(f"{path}/.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def ask(server: BrokerServer, body: Message, version: int | None = None) -> Any:
    connection = await KafkaConnection.connect(
        "127.0.0.1", server.ports["PLAINTEXT"], client_id="test", timeout_ms=TIMEOUT_MS
    )
    try:
        return await connection.request(body, timeout_ms=TIMEOUT_MS, version=version)
    finally:
        connection.close()


async def ask_for_topic(server: BrokerServer, name: str) -> None:
    """Create a topic, and wait until its single partition has a leader."""
    request = METADATA(topics=[METADATA.MetadataRequestTopic(name=name)])
    while True:
        (topic,) = (await ask(server, request)).topics
        if topic.error_code == 0 and topic.partitions[0].error_code == 0:
            return
        await asyncio.sleep(0.01)


async def write(server: BrokerServer, topic: str) -> int:
    """Write one batch once the leader accepts it, and return its offset."""
    data = PRODUCE.TopicProduceData(
        name=topic, partition_data=[PRODUCE.PartitionProduceData(index=0, records=batch())]
    )
    while True:
        response = await ask(server, PRODUCE(acks=-1, timeout_ms=1_000, topic_data=[data]), 9)
        (part,) = response.responses[0].partition_responses
        if part.error_code == 0:
            return int(part.base_offset)
        await asyncio.sleep(0.01)


async def test_restarted_broker_keeps_written_records(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    async with controller() as port:
        config = broker_config(port, *paths)
        for life in range(2):
            async with serving(config) as server:
                await ask_for_topic(server, "t")
                assert await write(server, "t") == life
                assert not (tmp_path / "d1" / ".kafka_cleanshutdown").exists()
            assert all((tmp_path / d / ".kafka_cleanshutdown").exists() for d in ("d1", "d2"))


async def test_registration_reports_clean_shutdown_epoch_of_each_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[tuple[int, Uuid], ...]] = []
    call, lives = ControllerChannel.call, list[tuple[int, Uuid]]()

    async def spied(channel: Any, request: Any, **more: Any) -> Any:
        response = await call(channel, request, **more)
        if isinstance(request, BrokerRegistrationRequest):
            epochs = request.clean_shutdown_epochs
            reported.append(tuple(zip(epochs, request.clean_shutdown_incarnations, strict=True)))
            lives.append((response.broker_epoch, request.incarnation_id))
        return response

    monkeypatch.setattr(ControllerChannel, "call", spied)
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    unknown = (-1, NO_INCARNATION)
    async with controller() as port:
        config = broker_config(port, *paths)
        for stopped_uncleanly in ((), ("d1",), ("d2",)):
            async with serving(config):
                pass
            for name in stopped_uncleanly:
                (tmp_path / name / ".kafka_cleanshutdown").unlink()
        async with serving(config):
            pass
    assert reported == [
        (unknown, unknown),
        (lives[0], lives[0]),
        (unknown, lives[1]),
        (lives[2], unknown),
    ]


async def test_status_shows_state_and_counts_of_log_dirs(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2, 3)]
    metadata = format_disk(tmp_path / "m", 4)
    async with controller() as port:
        config = broker_config(port, *paths, metadata_log_dir=metadata)
        assert BrokerServer(config, Environment()).status() == "opening log directories"
        async with serving(config) as server:
            assert server.status() == ("running; log directories: 3 online, 0 impaired, 0 offline")
            (tmp_path / "d2" / "meta.properties").unlink()
            while "3 online" in server.status():
                await asyncio.sleep(0.01)
            assert server.status() == (
                f"running; log directories: 2 online, 0 impaired, 1 offline ({paths[1]})"
            )
        assert server.status().startswith("shutting down; ")


async def test_stopped_broker_closes_its_port_and_releases_its_disks(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with controller() as port:
        async with serving(broker_config(port, path)) as server:
            ports = server.ports
        with pytest.raises(ConnectionLostError):
            await KafkaConnection.connect(
                "127.0.0.1", ports["PLAINTEXT"], client_id="test", timeout_ms=TIMEOUT_MS
            )
        async with serving(broker_config(port, path)):
            pass


async def test_waiting_fetch_does_not_delay_the_stop(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with controller() as port:
        async with serving(broker_config(port, path)) as server:
            await ask_for_topic(server, "t")
            end = await write(server, "t") + 1
            part = FETCH.FetchPartition(partition=0, fetch_offset=end, partition_max_bytes=1000)
            waiting = asyncio.create_task(
                ask(
                    server,
                    FETCH(
                        max_wait_ms=60_000,
                        min_bytes=1,
                        topics=[FETCH.FetchTopic(topic="t", partitions=[part])],
                    ),
                    12,
                )
            )
            await asyncio.sleep(0.05)
            assert not waiting.done()
        (answered,) = (await waiting).responses[0].partitions
        # The leaders moved away first, so the response asks the client to find the new leader.
        assert answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_loss_of_last_log_dir_stops_the_broker(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    meta = format_disk(tmp_path / "meta", 2)
    async with (
        controller() as port,
        serving(broker_config(port, path, metadata_log_dir=meta)) as server,
    ):
        (tmp_path / "d1" / "meta.properties").unlink()
        with pytest.raises(KafkaStorageError, match="last log directory"):
            await server.wait_failed()


async def test_loss_of_metadata_dir_stops_the_broker(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    meta = format_disk(tmp_path / "meta", 3)
    async with (
        controller() as port,
        serving(broker_config(port, *paths, metadata_log_dir=meta)) as server,
    ):
        (tmp_path / "meta" / "meta.properties").unlink()
        with pytest.raises(KafkaStorageError, match="metadata directory"):
            await server.wait_failed()


async def test_loss_of_one_of_two_log_dirs_keeps_the_broker_running(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    describe = DescribeLogDirsRequest
    async with controller() as port, serving(broker_config(port, *paths)) as server:
        (tmp_path / "d2" / "meta.properties").unlink()
        errors: dict[str, int] = {}
        while not errors.get(paths[1]):
            reported = await ask(server, describe(topics=None))
            errors = {result.log_dir: result.error_code for result in reported.results}
            await asyncio.sleep(0.01)
        assert errors == {paths[0]: 0, paths[1]: KafkaStorageError.code}
        await ask_for_topic(server, "t")
        await write(server, "t")


async def test_start_fails_with_directory_of_another_cluster(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    async with controller() as port, asyncio.timeout(PATIENCE_S):
        server = BrokerServer(broker_config(port, path), Environment())
        with pytest.raises(StartupError, match="cluster"):
            await server.start()
        await server.stop()


async def test_cancelled_start_releases_the_disks(tmp_path: Path) -> None:
    """The runner cancels ``start`` on a signal, at any point of it."""
    path = format_disk(tmp_path / "d1", 1)
    async with asyncio.timeout(PATIENCE_S):
        server = BrokerServer(broker_config(free_port(), path), Environment())
        starting = asyncio.create_task(server.start())
        while not server.ports:
            await asyncio.sleep(0.001)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await server.stop()
    async with controller() as port, serving(broker_config(port, path)):
        pass


# --- as a separate process ------------------------------------------------------------------------


class Process:
    """``python -m kraftjbod.daemon.broker_server`` with its telemetry in a file."""

    def __init__(self, tmp_path: Path, properties: dict[str, str]) -> None:
        conf = tmp_path / "broker.properties"
        conf.write_text(format_properties(properties, "test"))
        self.telemetry = tmp_path / "telemetry.jsonl"
        self.telemetry.touch()
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "kraftjbod.daemon.broker_server", str(conf)),
                *("--override", f"telemetry.path={self.telemetry}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def has_reported(self, event: str) -> None:
        while f'"{event}"' not in self.telemetry.read_text():
            assert self._child.poll() is None, self._child.communicate()
            await asyncio.sleep(0.02)

    def signal(self, signum: signal.Signals) -> None:
        self._child.send_signal(signum)

    async def end(self) -> tuple[int, str]:
        """Return exit code and standard error."""
        _, err = await asyncio.to_thread(self._child.communicate, timeout=PATIENCE_S)
        return self._child.returncode, err

    async def close(self) -> None:
        """Kill the process if the test left it running."""
        if self._child.poll() is None:
            self._child.kill()
            await self.end()


@contextlib.asynccontextmanager
async def running(tmp_path: Path, properties: dict[str, str]) -> AsyncIterator[Process]:
    process = Process(tmp_path, properties)
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield process
    finally:
        await process.close()


@pytest.mark.process
async def test_signal_stops_broker_process_with_clean_shutdown(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with (
        controller() as port,
        running(tmp_path, broker_properties(port, path)) as process,
    ):
        await process.has_reported("broker_started")
        process.signal(signal.SIGTERM)
        assert await process.end() == (EXIT_CLEAN, "")
        assert (tmp_path / "d1" / ".kafka_cleanshutdown").exists()


@pytest.mark.process
async def test_signal_stops_broker_process_before_registration(
    tmp_path: Path,
) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with running(tmp_path, broker_properties(free_port(), path)) as process:
        await process.has_reported("broker_registration_failed")
        process.signal(signal.SIGINT)
        assert await process.end() == (EXIT_CLEAN, "")


@pytest.mark.process
async def test_broker_process_that_loses_its_metadata_dir_exits_with_74(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with (
        controller() as port,
        running(tmp_path, broker_properties(port, path)) as process,
    ):
        await process.has_reported("broker_started")
        (tmp_path / "d1" / "meta.properties").unlink()
        assert (await process.end())[0] == EXIT_METADATA_DIR_LOST


@pytest.mark.process
async def test_broker_process_without_log_dirs_exits_with_73(tmp_path: Path) -> None:
    path, metadata = format_disk(tmp_path / "d1", 1), format_disk(tmp_path / "m", 2)
    async with controller() as port:
        properties = broker_properties(port, path, metadata_log_dir=metadata)
        async with running(tmp_path, properties) as process:
            await process.has_reported("broker_started")
            (tmp_path / "d1" / "meta.properties").unlink()
            assert (await process.end())[0] == EXIT_LOG_DIRS_LOST
        async with running(tmp_path, properties) as process:
            code, err = await process.end()
    assert code == EXIT_LOG_DIRS_LOST
    assert "none of the log directories can be used" in err


@pytest.mark.process
@pytest.mark.parametrize(
    ("why", "exit_code"),
    [
        ("not formatted", EXIT_INCONSISTENT_STORAGE),
        ("another node's", EXIT_INCONSISTENT_STORAGE),
        ("another cluster's", EXIT_REFUSED),
        ("no metadata dir", EXIT_METADATA_DIR_LOST),
        ("no controller", EXIT_CLUSTER_UNREACHABLE),
        ("wrong value", EXIT_CONFIG),
        ("port taken", EXIT_STARTUP),
    ],
)
async def test_broker_process_that_cannot_start_prints_reason_in_one_line(
    tmp_path: Path, why: str, exit_code: int
) -> None:
    with taken_port() as taken:
        async with controller() as port:
            path = tmp_path / "d1"
            match why:
                case "not formatted":
                    path.mkdir()
                    properties = broker_properties(port, str(path))
                    said = "meta.properties"
                case "no controller":
                    properties = broker_properties(
                        free_port(),
                        format_disk(path, 1),
                        initial_broker_registration_timeout_ms="300",
                    )
                    said = "regist"
                case "another cluster's":
                    properties = broker_properties(port, format_disk(path, 1, cluster_id="x" * 22))
                    said = "cluster"
                case "another node's":
                    properties = broker_properties(port, format_disk(path, 1), node_id="3")
                    said = "Stored node id 2"
                case "no metadata dir":
                    properties = broker_properties(
                        port, format_disk(tmp_path / "d2", 2), metadata_log_dir=str(path)
                    )
                    said = f"{path} does not exist: mount its disk"
                case "wrong value":
                    properties = broker_properties(
                        port, format_disk(path, 1), log_dir_io_timeout_ms="soon"
                    )
                    said = "log.dir.io.timeout.ms"
                case _:
                    properties = broker_properties(
                        port, format_disk(path, 1), listeners=f"PLAINTEXT://127.0.0.1:{taken}"
                    )
                    said = str(taken)
            async with running(tmp_path, properties) as process:
                code, err = await process.end()
        assert code == exit_code
        assert err.count("\n") == 1
        assert err.startswith("kraftjbod-broker: ")
        assert said in err


async def test_min_insync_replicas_of_file_is_logged_as_ignored(
    tmp_path: Path,
) -> None:
    path = format_disk(tmp_path / "d1", 1)
    async with controller() as port:
        with capture_logs() as logged:
            async with serving(broker_config(port, path, min_insync_replicas="1")):
                pass
    events = {line["event"]: line for line in logged}
    assert events["min_insync_replicas_of_file_ignored"]["value"] == 1
