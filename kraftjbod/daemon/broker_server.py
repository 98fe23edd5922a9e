"""WIRE. The broker daemon: starts and stops a broker.

The start has these steps. Each of them needs the steps before it. All steps are parts of one list
(parts.py).

1. Open the log directories: lock, identify and watch them. A directory that fails becomes OFFLINE,
   and the start continues.
2. Register as a fenced broker, with the online directories.
3. Follow the metadata to its end. Wait if the controller has another metadata log than the one that
   this broker knows.
4. Load the logs, in all directories concurrently. Logs that were not closed cleanly are recovered.
5. Compare the logs with the metadata: create missing replicas, set strays aside, and report to the
   controller which replica is in which directory.
6. Once the controller knows the directory of every replica, request to be unfenced.
7. Open the Kafka listeners. A listener whose port the system chooses is bound before step 2,
   because the registration names the port. Its connections wait until this step.

An orderly stop first moves the leaders away, then closes the parts in reverse order: listeners,
fetchers, background work, checkpoints, logs, directories. A broker stops without moving its leaders
if it lost its last log directory or its metadata directory, if it cannot report a failed directory,
or if the cluster refuses the broker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any, Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerState
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.security.connection_rate import connection_delay_ms
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import KafkaStorageError, KraftJbodError
from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH
from kraftjbod.core.metadata_version import KRAFT_VERSION, KRAFT_VERSIONS, SUPPORTED_FEATURES
from kraftjbod.core.node_config import Endpoint
from kraftjbod.core.security_keys import SASL_PROTOCOLS
from kraftjbod.core.telemetry import get_logger
from kraftjbod.daemon.broker_limits import broker_limits
from kraftjbod.daemon.dynamic_listeners import DynamicListeners
from kraftjbod.daemon.listener_limits import (
    broker_listener_limits,
    memory_before_login,
    memory_budget,
)
from kraftjbod.daemon.listener_oauth import ListenerOauth
from kraftjbod.daemon.listener_sasl import is_node, sasl_settings
from kraftjbod.daemon.parts import Part, PartList
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.process.service_manager import dirs_text
from kraftjbod.daemon.runner import run_daemon
from kraftjbod.daemon.tls.node_tls import NodeTls
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks, open_disks
from kraftjbod.daemon.wiring.broker_wiring import BrokerWiring, build_wiring
from kraftjbod.daemon.wiring.cluster_wiring import NodeDialers
from kraftjbod.daemon.wiring.member_hosts import hosts_known_to_broker
from kraftjbod.metadata.state import MetadataState
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener
from kraftjbod.net.sasl_login import SaslLogin
from kraftjbod.protocol.kafka_codec import ApiFeatures, Message, RequestHeader
from kraftjbod.storage.replicas.dir_loading import LoadProgress

#: How long a stop waits for the last lines of the audit.
_AUDIT_CLOSE_TIMEOUT_S: Final = 2.0
_LISTENER_CLOSE_TIMEOUT_MS: Final = 2_000
#: How long a broker without online directories tries to report to the controller before it stops.
_FAREWELL_TIMEOUT_MS: Final = 2_000
_PROGRESS_EVERY_LOGS: Final = 500
#: Connections on which a client sent bytes this recently are not reset after an outage.
_SILENT_S: Final = 2.0

_FEATURES: Final = {**SUPPORTED_FEATURES, KRAFT_VERSION: KRAFT_VERSIONS}


class BrokerServer:
    """A broker: opens its log directories, and serves its listeners until it is stopped.

    Implements :class:`~kraftjbod.daemon.runner.Daemon`.
    """

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._config = config
        self._environment = environment
        self._tasks = BackgroundTasks()
        self._disks: BrokerDisks | None = None
        self._wiring: BrokerWiring | None = None
        self._memory = memory_budget(config)
        self._memory_before_login = memory_before_login(config)
        self._peers = ClusterPeers(
            config.allowed_hosts, known_hosts=hosts_known_to_broker(config, self._state)
        )
        #: The listeners by name.
        self._listeners: dict[str, Listener] = {}
        self._tls = NodeTls(config, environment)
        self._oauth = ListenerOauth(config, environment)
        self._dynamic_listeners = DynamicListeners(
            config,
            tls=self._tls,
            listeners=self._listeners,
            references=environment.references,
            max_open_files=environment.max_open_files,
        )
        self._is_open = False
        self._parts = PartList(
            (
                Part(name="log directories", start=self._open_disks, close=self._close_disks),
                Part(
                    name="certificates",
                    start=self._tls.open_listeners,
                    close=self._tls.close,
                    failed=self._tls.run_renewals,
                ),
                Part(
                    name="keys of tokens",
                    start=self._oauth.open_listeners,
                    close=self._oauth.close,
                    failed=self._oauth.run_refreshes,
                ),
                Part(
                    name="listener addresses",
                    start=self._bind_listeners,
                    close=self._close_listeners,
                ),
                Part(name="wiring", start=self._build_wiring),
            )
        )
        self._log = get_logger(component="broker_server", broker_id=config.node_id)

    @property
    def ports(self) -> dict[str, int]:
        """The bound port of each listener, by listener name; empty before the listeners are
        bound."""
        return {name: listener.port for name, listener in self._listeners.items()}

    @property
    def wiring(self) -> BrokerWiring | None:
        """The broker's parts, for inspection only; None until the log directories are open."""
        return self._wiring

    @property
    def has_figures(self) -> bool:
        return self._wiring is not None

    @property
    def is_open(self) -> bool:
        """Whether the listeners were opened for clients; stays True during and after a stop."""
        return self._is_open

    async def start(self) -> None:
        config = self._config
        if config.min_insync_replicas < config.topic_defaults().min_insync_replicas:
            self._log.warning(
                "min_insync_replicas_of_file_ignored",
                value=config.min_insync_replicas,
                do="set it in the controllers' files, or by kraftjbod-configs --entity-default",
            )
        await self._parts.start()

    async def wait_failed(self) -> None:
        await self._parts.wait_failed()

    async def stop(self) -> None:
        await self._parts.close()

    def _build_wiring(self) -> None:
        assert self._disks is not None
        wiring = self._wiring = build_wiring(
            self._config,
            self._environment,
            self._disks,
            self._advertised(),
            self._tasks,
            answers=self._memory.answers,
            peers=self._peers,
            dialers=NodeDialers(
                brokers=self._tls.dialer_of(self._config.inter_broker_listener),
                controllers=self._tls.dialer_of(self._config.controller_listener),
                login=self._broker_login(),
            ),
            check_listeners=self._dynamic_listeners.check,
        )
        wiring.cluster.dynamic_configs.subscribe_listeners(self._dynamic_listeners.take)
        self._parts.add(*self._hosting(wiring), *self._serving(wiring, self._disks))

    def _broker_login(self) -> SaslLogin | None:
        """Return this broker's login at other brokers; None if their listener has no SASL."""
        login = self._config.login_of(self._config.inter_broker_listener)
        if login is None:
            return None
        random_bytes = self._environment.random_bytes
        return SaslLogin(login.mechanism, login.user, login.password, random_bytes)

    def _hosting(self, wiring: BrokerWiring) -> list[Part]:
        """Return the parts for the replicas, the registration and the states of directories.

        These parts start before the parts of :meth:`_serving`, and close after those.
        """
        cluster, replicas, directories = wiring.cluster, wiring.replicas, wiring.directories
        return [
            Part(name="high watermarks", close=replicas.manager.checkpoint_high_watermarks),
            Part(name="appends", close=replicas.appends.close),
            Part(name="transaction_verifier", close=replicas.verifier.close),
            Part(name="metadata memory", start=cluster.memory.load, close=cluster.memory.write),
            Part(name="controller channel", close=cluster.channel.close),
            Part(name="background tasks", close=self._tasks.close),
            Part(
                name="lifecycle",
                start=cluster.lifecycle.start,
                close=cluster.lifecycle.close,
                failed=cluster.lifecycle.wait_failed,
            ),
            Part(name="assignments", close=cluster.assignments.close),
            Part(name="moves", close=replicas.moves.close),
            Part(name="metadata publisher", close=replicas.publisher.close),
            Part(name="fetchers", close=replicas.fetchers.close),
            Part(name="orders about directories", close=directories.admin.close),
            Part(
                name="states of directories",
                start=lambda: self._begin(
                    directories.state_handler.run_handler(), "log_dir_state_handler"
                ),
                failed=directories.state_handler.lost,
            ),
        ]

    def _serving(self, wiring: BrokerWiring, disks: BrokerDisks) -> list[Part]:
        """Return the parts that follow the metadata, load the logs, unfence the broker and serve
        clients."""
        return [
            # First of these parts, so that the listeners close before the parts of _hosting even if
            # the start of a later part failed.
            Part(name="listeners", close=partial(self._leave_cluster, wiring)),
            Part(name="audit", close=lambda: self._close_audit(wiring)),
            Part(name="groups", close=wiring.groups.coordinator.close),
            Part(name="transactions", close=wiring.transactions.transaction_coordinator.close),
            Part(name="metadata", start=partial(self._follow_metadata, wiring)),
            Part(name="logs", start=partial(self._load_logs, wiring, disks)),
            Part(name="background work", start=partial(self._start_background, wiring, disks)),
            Part(
                name="leaders",
                start=partial(self._become_unfenced, wiring),
                close=partial(self._move_leaders, wiring.cluster.lifecycle),
            ),
            Part(name="opening", start=partial(self._start_listeners, wiring)),
        ]

    # --- up --------------------------------------------------------------------------------------

    async def _open_disks(self) -> None:
        self._log.info(
            "broker_limits", **broker_limits(self._config, self._environment.max_open_files)
        )
        self._disks = await open_disks(self._config, self._environment)

    async def _bind_listeners(self) -> None:
        """Bind all listeners, without accepting connections.

        The broker registers after this step, because the system may choose the ports.
        """
        for endpoint in self._config.listeners:
            await self._bind_listener(endpoint)

    async def _follow_metadata(self, wiring: BrokerWiring) -> None:
        self._begin(wiring.replicas.loader.run_loader(), "metadata_loader")
        self._tasks.keep(self._peers.resolve_periodically, "cluster_peers")
        await wiring.replicas.loader.caught_up(await wiring.cluster.lifecycle.registered())
        await wiring.cluster.memory.write()
        self._tasks.keep(wiring.cluster.memory.run_writes, "metadata_memory")

    async def _load_logs(self, wiring: BrokerWiring, disks: BrokerDisks) -> None:
        replicas = wiring.replicas
        replicas.manager.apply_configs()
        await disks.logs.load(self._log_progress)
        await replicas.requested_moves.load(wiring.cluster.is_agreed_to)
        await replicas.leftovers.resolve()
        wiring.directories.admin.log_unknown()
        replicas.publisher.open()

    def _start_background(self, wiring: BrokerWiring, disks: BrokerDisks) -> None:
        replicas, directories = wiring.replicas, wiring.directories
        self._begin(disks.logs.run_background(), "log_manager")
        self._tasks.keep(directories.monitor.run_checks, "log_dir_monitor")
        self._tasks.keep(directories.scrubs.run_scrubs, "scrubs")
        self._begin(directories.stray_retention.run_retention(), "stray_retention")
        self._tasks.keep(replicas.saturated_followers.run_requests, "saturated_followers")
        self._begin(replicas.isr.run_isr_manager(), "isr_manager")
        self._begin(replicas.isr.watch(), "isr_watch")
        self._tasks.keep(directories.admin.run_reattachment, "log_dir_admin")
        self._tasks.keep(wiring.groups.coordinator.run_expirations, "group_coordinator")
        self._tasks.keep(
            wiring.transactions.transaction_coordinator.run_expirations, "transaction_coordinator"
        )
        self._tasks.keep(
            partial(self._checkpoint_high_watermarks, replicas.manager),
            "high_watermark_checkpoints",
        )

    async def _become_unfenced(self, wiring: BrokerWiring) -> None:
        await wiring.replicas.publisher.disk_work_done()
        await wiring.cluster.assignments.idle()
        wiring.cluster.lifecycle.set_ready_to_unfence()
        await wiring.cluster.lifecycle.unfenced()

    async def _start_listeners(self, wiring: BrokerWiring) -> None:
        await self._tls.renew()  # Dynamic key stores apply before the first client connects.
        for listener in self._listeners.values():
            await listener.start()
        self._is_open = True
        self._tasks.keep(partial(self._reset_lost, wiring.cluster.lifecycle), "lost_connections")
        if self._config.storage_telemetry_enable:
            self._tasks.keep(wiring.apis.telemetry.run_emitter, "storage_telemetry")
        if self._config.group_telemetry_enable:
            self._tasks.keep(wiring.apis.group_telemetry.run_emitter, "group_telemetry")
        self._log.info("broker_started", ports=self.ports, replicas=len(wiring.replicas.hosted))

    async def _reset_lost(self, lifecycle: BrokerLifecycleManager) -> None:
        """Reset the connections that were silent during a network outage of this broker; never
        return.

        Other brokers lead this broker's partitions after the outage. A reset makes a waiting client
        ask for the new leader. Without it the client would wait for TCP retransmissions, whose
        pauses are as long as the outage.
        """
        while True:
            since_s = await lifecycle.session_regained()
            since_s = min(since_s, asyncio.get_running_loop().time() - _SILENT_S)
            for listener in list(self._listeners.values()):
                count = await listener.reset_silent(since_s)
                if count:
                    self._log.info(
                        "silent_connections_reset", port=listener.port, connections=count
                    )

    def _begin(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.start(work, name)

    def _sasl_of(self, name: str) -> SaslSettings | None:
        if self._config.protocol_of(name) not in SASL_PROTOCOLS:
            return None
        assert self._disks is not None, "listeners are bound after the directories are opened"
        return sasl_settings(
            self._config.of_listener(name),
            self._memory_before_login,
            state=self._state,
            cluster_id=self._disks.cluster_id,
            random_bytes=self._environment.random_bytes,
            token_keys=self._oauth.keys_of(name),
            wall_ms=self._environment.clock.wall_ms,
            is_node=partial(is_node, self._config.node_principals),
        )

    async def _bind_listener(self, endpoint: Endpoint) -> None:
        listener = kafka_server(
            host=endpoint.host,
            port=endpoint.port,
            handler=self._handle,
            listener_name=endpoint.name,
            features=self._features,
            is_broker=self._is_broker,
            peers=self._peers,
            memory=self._memory,
            limits=broker_listener_limits(
                self._config, self._environment.max_open_files, endpoint.name
            ),
            sasl=self._sasl_of(endpoint.name),
            tls=self._tls.settings_of(endpoint.name),
            node_principals=self._config.node_principals_of(endpoint.name),
            delay_ms_of=self._connection_delay_ms,
        )
        await listener.bind()
        self._listeners[endpoint.name] = listener

    def _handle(
        self, header: RequestHeader, body: Message, connection: ConnectionContext
    ) -> Awaitable[Message | None]:
        assert self._wiring is not None, "listeners are opened last"
        return self._wiring.apis.kafka.handle(header, body, connection)

    def _is_broker(self, header: RequestHeader, body: Message) -> bool:
        return self._wiring is not None and self._wiring.apis.kafka.is_of_broker(header, body)

    def _connection_delay_ms(self, host: str) -> int:
        wiring = self._wiring
        return 0 if wiring is None else connection_delay_ms(wiring.cluster.client_rates, host)

    def _state(self) -> MetadataState:
        """Return the metadata that this broker knows; an empty state before the wiring is built."""
        return MetadataState() if self._wiring is None else self._wiring.cluster.cache.state

    def _features(self) -> ApiFeatures:
        wiring = self._wiring
        if wiring is None or wiring.cluster.cache.state.offset < 0:
            return ApiFeatures(supported=_FEATURES)
        cluster = wiring.cluster
        # kraft.version is not in the metadata records; the controller reports it.
        levels = {**cluster.cache.state.features, KRAFT_VERSION: cluster.channel.kraft_version}
        return ApiFeatures(_FEATURES, finalized=levels, epoch=cluster.cache.state.offset)

    def _advertised(self) -> list[Endpoint]:
        """Return the advertised endpoints; port 0 is replaced by the bound port."""
        return [
            endpoint._replace(port=self._listeners[endpoint.name].port)
            if endpoint.port == 0 and endpoint.name in self._listeners
            else endpoint
            for endpoint in self._config.advertised
        ]

    async def _checkpoint_high_watermarks(self, replicas: ReplicaManager) -> None:
        while True:
            interval_ms = self._config.replica_high_watermark_checkpoint_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            await replicas.checkpoint_high_watermarks()

    def _log_progress(self, progress: LoadProgress) -> None:
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
        wiring, disks = self._wiring, self._disks
        if disks is None:
            return "opening log directories"
        doing, refusal = "starting", None
        if wiring is not None:
            refusal = wiring.replicas.loader.refusal
            state = wiring.cluster.lifecycle.state
            if state is not BrokerState.RUNNING or self._is_open:
                doing = state.value.replace("_", " ")
        waits = "" if refusal is None else f"; waits for its metadata: {refusal}"
        return f"{doing}{waits}; {dirs_text(disks.logs.dirs())}"

    # --- down ------------------------------------------------------------------------------------

    @property
    def _lost(self) -> KraftJbodError | None:
        """The :class:`KraftJbodError` that ended this broker; None without such an error."""
        failure = self._parts.failure
        return failure if isinstance(failure, KraftJbodError) else None

    async def _move_leaders(self, lifecycle: BrokerLifecycleManager) -> None:
        is_asked = self._config.controlled_shutdown_enable and self._lost is None
        if is_asked and lifecycle.state is BrokerState.RUNNING:
            await lifecycle.begin_controlled_shutdown(self._config.controlled_shutdown_timeout_ms)

    async def _leave_cluster(self, wiring: BrokerWiring) -> None:
        """Close the listeners, and concurrently request to be fenced if the storage is lost.

        Connected clients must not delay that request.
        """
        await asyncio.gather(
            self._close_listeners(), self._request_fencing(wiring.cluster.lifecycle)
        )

    async def _request_fencing(self, lifecycle: BrokerLifecycleManager) -> None:
        """Request to be fenced if the broker lost its storage, so that no session has to expire."""
        if isinstance(self._lost, KafkaStorageError):
            await lifecycle.begin_controlled_shutdown(_FAREWELL_TIMEOUT_MS, at_once=True)

    async def _close_listeners(self) -> None:
        """Close the listeners, and complete the requests that wait for data."""
        closing = [
            asyncio.create_task(listener.close(timeout_ms=_LISTENER_CLOSE_TIMEOUT_MS))
            for listener in self._listeners.values()
        ]
        await asyncio.sleep(0)
        if self._wiring is not None:
            self._wiring.replicas.hosted.close()
        await asyncio.gather(*closing)

    async def _close_audit(self, wiring: BrokerWiring) -> None:
        """Wait for the last lines of the audit, in a thread because the disk may hang."""
        audit = wiring.apis.audit
        if audit.has_lines:
            await asyncio.to_thread(audit.close, _AUDIT_CLOSE_TIMEOUT_S)

    async def _close_disks(self) -> None:
        if self._disks is None:
            return
        if self._wiring is None:
            await self._disks.logs.close(UNKNOWN_BROKER_EPOCH)
        else:
            await self._disks.logs.close(
                self._wiring.cluster.lifecycle.broker_epoch,
                self._wiring.cluster.identity.incarnation_id,
                doubtful=self._wiring.replicas.doubtful.unreported(),
            )
        self._disks.metadata_dir.close()
        await self._disks.metadata_dir.unlocked()


def main() -> None:
    sys.exit(run_daemon("broker", BrokerConfig, BrokerServer))


if __name__ == "__main__":
    main()
