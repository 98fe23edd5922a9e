"""WIRE. The broker daemon: brings a broker up and takes it down.

The start order; each step needs the ones before it:

1. open the log directories: locked, identified, watched. A sick one is OFFLINE, not a failed start;
2. register, fenced, with the directories that are online;
3. follow the metadata to its end, and wait where it is not the one that this broker knows;
4. load the logs, all directories at once; unclean ones recover;
5. compare them with the metadata: make what is missing, set strays aside, tell the controller
   which replica is in which directory;
6. once the controller knows where every replica is, ask to be unfenced;
7. open the Kafka doors. One whose port the system chooses is opened before step 2, because the
   registration names it, but what comes through it waits.

The stop is the reverse, after the leaders have moved away in an orderly one:
doors, fetchers, background work, checkpoints, logs, directories.
What ends a broker by itself (its last or its metadata directory is lost, a dead directory cannot
be reported, the cluster refuses it) ends it with the doors first and without moving leaders.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.lifecycle_state import BrokerState
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import KafkaStorageError, KraftJbodError
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.core.node_config import Endpoint
from kraftjbod.core.telemetry import get_logger
from kraftjbod.daemon.broker_disks import BrokerDisks, open_disks
from kraftjbod.daemon.broker_parts import BrokerParts
from kraftjbod.daemon.door_limits import broker_door, memory_budget
from kraftjbod.daemon.runner import Environment, run_daemon
from kraftjbod.daemon.service_manager import dirs_text
from kraftjbod.net.connection import ConnectionLimits
from kraftjbod.net.kafka_server import ConnectionInfo, kafka_server
from kraftjbod.net.listener import Listener
from kraftjbod.net.request_session import SessionLimits
from kraftjbod.protocol.kafka_codec import ApiFeatures, Message, RequestHeader
from kraftjbod.storage.replicas.dir_loading import LoadProgress

_DOOR_CLOSE_TIMEOUT_MS: Final = 2_000
#: How long a broker without disks tries to tell the controller before it ends.
_FAREWELL_TIMEOUT_MS: Final = 2_000
_PROGRESS_EVERY_LOGS: Final = 500


class BrokerServer:
    """One broker, as the runner sees it."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._config = config
        self._around = environment
        self._tasks = BackgroundTasks()
        self._disks: BrokerDisks | None = None
        self._parts: BrokerParts | None = None
        self._memory = memory_budget(config)
        #: By listener name.
        self._doors: dict[str, Listener] = {}
        self._is_open = False
        #: What ended this broker, if it did not end in order.
        self._lost: KraftJbodError | None = None
        self._log = get_logger(component="broker_server", broker_id=config.node_id)

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the doors, by listener name."""
        return {name: door.port for name, door in self._doors.items()}

    # --- up --------------------------------------------------------------------------------------

    async def start(self) -> None:
        config = self._config
        if config.min_insync_replicas < config.topic_defaults().min_insync_replicas:
            self._log.warning(
                "min_insync_replicas_of_file_ignored",
                value=config.min_insync_replicas,
                do="set it in the controllers' files, or by kraftjbod-configs --entity-default",
            )
        self._disks = await open_disks(self._config, self._around)
        for endpoint in self._config.listeners:
            # Before anybody counts on this broker; and the port may be the system's choice.
            await self._bind_door(endpoint)
        parts = self._parts = BrokerParts(
            self._config,
            self._around,
            self._disks,
            self._advertised(),
            self._tasks,
            answers=self._memory.answers,
        )
        await parts.memory.load()
        parts.lifecycle.start()
        self._tasks.start(parts.state_handler.run(), "log_dir_state_handler")
        self._tasks.start(parts.loader.run(), "metadata_loader")
        await self._unless_lost(parts, self._come_up(parts, self._disks))

    async def _come_up(self, parts: BrokerParts, disks: BrokerDisks) -> None:
        await parts.loader.caught_up(await parts.lifecycle.registered())
        await parts.memory.write()
        self._tasks.keep(parts.memory.run, "metadata_memory")
        parts.replicas.apply_configs()
        await disks.logs.load(self._tell_progress)
        await parts.asked_moves.load(parts.is_agreed_to)
        await parts.leftovers.resolve()
        parts.log_dir_admin.tell_of_unknown()
        parts.publisher.open()
        self._tasks.start(disks.logs.run_background(), "log_manager")
        self._tasks.keep(parts.monitor.run, "log_dir_monitor")
        self._tasks.keep(parts.scrubs.run, "scrubs")
        self._tasks.start(parts.stray_retention.run(), "stray_retention")
        self._tasks.keep(parts.saturated_followers.run, "saturated_followers")
        self._tasks.start(parts.isr.run(), "isr_manager")
        self._tasks.start(parts.isr.watch(), "isr_watch")
        self._tasks.keep(parts.log_dir_admin.run, "log_dir_admin")
        self._tasks.keep(
            partial(self._checkpoint_high_watermarks, parts), "high_watermark_checkpoints"
        )
        await parts.publisher.disk_work_done()
        await parts.assignments.idle()
        parts.lifecycle.set_ready_to_unfence()
        await parts.lifecycle.unfenced()
        for door in self._doors.values():
            await door.start()
        self._is_open = True
        if self._config.storage_telemetry_enable:
            self._tasks.keep(parts.telemetry.run, "storage_telemetry")
        self._log.info(
            "broker_started",
            ports=self.ports,
            replicas=len(parts.hosted),
        )

    async def _bind_door(self, endpoint: Endpoint) -> None:
        config = self._config

        def handle(
            header: RequestHeader, body: Message, peer: ConnectionInfo
        ) -> Awaitable[Message | None]:
            assert self._parts is not None
            return self._parts.apis.handle(endpoint.name, header, body)

        door = kafka_server(
            host=endpoint.host,
            port=endpoint.port,
            handler=handle,
            features=self._features,
            connection_limits=ConnectionLimits(max_frame_bytes=config.socket_request_max_bytes),
            session_limits=SessionLimits(
                max_in_flight_requests=config.max_in_flight_requests_per_connection,
                max_in_flight_bytes=config.max_in_flight_bytes_per_connection,
            ),
            is_broker=self._is_broker,
            memory=self._memory,
            listener_limits=broker_door(config),
        )
        await door.bind()
        self._doors[endpoint.name] = door

    def _is_broker(self, header: RequestHeader, body: Message) -> bool:
        return self._parts is not None and self._parts.apis.is_of_broker(header, body)

    def _features(self) -> ApiFeatures:
        parts = self._parts
        if parts is None or parts.cache.state.offset < 0:
            return ApiFeatures(supported=SUPPORTED_FEATURES)
        state = parts.cache.state
        return ApiFeatures(SUPPORTED_FEATURES, finalized=state.features, epoch=state.offset)

    def _advertised(self) -> list[Endpoint]:
        """What clients are told, with the ports that the system chose."""
        return [
            endpoint._replace(port=self._doors[endpoint.name].port)
            if endpoint.port == 0 and endpoint.name in self._doors
            else endpoint
            for endpoint in self._config.advertised
        ]

    async def _checkpoint_high_watermarks(self, parts: BrokerParts) -> None:
        while True:
            interval_ms = self._config.replica_high_watermark_checkpoint_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            await parts.replicas.checkpoint_high_watermarks()

    def _tell_progress(self, progress: LoadProgress) -> None:
        is_end = progress.logs_done == progress.logs_total
        if is_end or progress.logs_done % _PROGRESS_EVERY_LOGS == 0:
            self._log.info(
                "logs_loading",
                log_dir=progress.log_dir.path,
                done=progress.logs_done,
                total=progress.logs_total,
                scanned_bytes=progress.scanned_bytes,
            )

    def status(self) -> str:
        parts, disks = self._parts, self._disks
        if disks is None:
            return "opening log directories"
        doing = "starting" if parts is None else parts.lifecycle.state.value.replace("_", " ")
        if parts is not None and parts.lifecycle.state is BrokerState.RUNNING:
            doing = "running" if self._is_open else "starting"
        refusal = None if parts is None else parts.loader.refusal
        waits = "" if refusal is None else f"; waits for its metadata: {refusal}"
        return f"{doing}{waits}; {dirs_text(disks.logs.dirs())}"

    # --- until the end ---------------------------------------------------------------------------

    async def wait_failed(self) -> None:
        assert self._parts is not None
        await self._unless_lost(self._parts, asyncio.Event().wait())

    async def _unless_lost(self, parts: BrokerParts, work: Coroutine[Any, Any, Any]) -> None:
        """Do ``work``, or raise what ends this broker, whichever comes first."""
        endings = [parts.lifecycle.wait_failed(), parts.state_handler.lost()]
        tasks = [asyncio.create_task(coroutine) for coroutine in (work, *endings)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except KraftJbodError as e:
            self._lost = e
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- down ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        parts, disks = self._parts, self._disks
        if parts is not None and self._may_move_leaders(parts):
            await parts.lifecycle.begin_controlled_shutdown(
                self._config.controlled_shutdown_timeout_ms
            )
        # The listeners close first; who is still connected must not hold up the farewell.
        await asyncio.gather(self._close_doors(parts), self._say_farewell(parts))
        broker_epoch, incarnation_id = -1, None
        if parts is not None:
            broker_epoch = parts.lifecycle.broker_epoch
            incarnation_id = parts.identity.incarnation_id
            await parts.log_dir_admin.close()
            parts.fetchers.close()
            await parts.publisher.close()
            await parts.moves.close()
            await parts.assignments.close()
            await parts.lifecycle.close()
        await self._tasks.close()
        if parts is not None:
            parts.channel.close()
            await parts.memory.write()
            parts.appends.close()
            await parts.replicas.checkpoint_high_watermarks()
        if disks is not None:
            await disks.logs.close(broker_epoch, incarnation_id)
            disks.metadata_dir.close()

    async def _say_farewell(self, parts: BrokerParts | None) -> None:
        """A broker without disks asks to be fenced, so that nobody waits for its session to end."""
        if parts is not None and isinstance(self._lost, KafkaStorageError):
            await parts.lifecycle.begin_controlled_shutdown(_FAREWELL_TIMEOUT_MS, at_once=True)

    def _may_move_leaders(self, parts: BrokerParts) -> bool:
        return (
            self._config.controlled_shutdown_enable
            and self._lost is None
            and parts.lifecycle.state is BrokerState.RUNNING
        )

    async def _close_doors(self, parts: BrokerParts | None) -> None:
        """Let nobody in any more, and end what waits for more data."""
        closing = [
            asyncio.create_task(door.close(timeout_ms=_DOOR_CLOSE_TIMEOUT_MS))
            for door in self._doors.values()
        ]
        await asyncio.sleep(0)
        if parts is not None:
            parts.hosted.close()
        await asyncio.gather(*closing)


def main() -> None:
    sys.exit(run_daemon("broker", BrokerConfig, BrokerServer))


if __name__ == "__main__":
    main()
