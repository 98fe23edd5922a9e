"""WIRE. The controller daemon: builds the parts of a controller, starts and stops them.

The start opens the metadata directory (lock, identity), then the metadata log (recovery), then the
listener. A single voter becomes the leader when its log is open. With several voters a majority
elects the leader after the listeners are open. Last, the controller registers with the active
controller. A stop closes the listener first, then the log, then the directory.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.quorum.controller_registration import ControllerRegistration
from kraftjbod.controller.quorum.described_settings import described_settings
from kraftjbod.controller.quorum_controller import NO_RECORDS, QuorumController
from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import ConnectionId, Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.core.node_principals import NO_NODES
from kraftjbod.core.scram import ScramUser
from kraftjbod.core.security_keys import SASL_PROTOCOLS
from kraftjbod.core.telemetry import LevelSwitch, get_logger
from kraftjbod.core.version import package_version
from kraftjbod.daemon.listener_limits import (
    controller_listener_limits,
    memory_before_login,
    memory_budget,
)
from kraftjbod.daemon.listener_sasl import sasl_settings
from kraftjbod.daemon.parts import Part, PartList
from kraftjbod.daemon.process.collector import Collector
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.process.service_manager import dirs_text
from kraftjbod.daemon.runner import run_daemon
from kraftjbod.daemon.tls.node_tls import NodeTls
from kraftjbod.daemon.wiring.authorizer_wiring import build_authorizer
from kraftjbod.daemon.wiring.log_dir_maker import make_log_dir
from kraftjbod.daemon.wiring.member_hosts import hosts_known_to_controller
from kraftjbod.daemon.wiring.quorum_wiring import QuorumWiring
from kraftjbod.metadata.state import MetadataState
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.connection import is_refused
from kraftjbod.net.listener import Listener
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol.rpc_controller_messages import (
    ControllerRegistrationRequest,
    DescribeControllerConfigsRequest,
    DescribeControllerConfigsResponse,
)
from kraftjbod.protocol.rpc_messages import ListenerInfo, RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumResponseRpc, QuorumMessagesRequest
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR, FORK_MARK
from kraftjbod.storage.identity.bootstrap import (
    forget_fork,
    read_bootstrap,
    read_bootstrap_users,
    read_bootstrap_voters,
)
from kraftjbod.storage.identity.dir_opener import DirOpener
from kraftjbod.storage.log_dirs.log_dir import LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

#: First and longest pause between attempts to register. Kafka's longest pause is two minutes; a
#: shorter one lets a quorum know its controllers soon after it recovered.
_REGISTRATION_BACKOFF_MS = (100, 10_000)


class ControllerServer:
    """A controller: takes part in the metadata quorum, and serves brokers and other controllers.

    Implements :class:`~kraftjbod.daemon.runner.Daemon`.
    """

    def __init__(self, config: ControllerConfig, environment: Environment) -> None:
        self._config = config
        self._environment = environment
        self._log = get_logger(daemon="controller", node_id=config.node_id)
        self._level = LevelSwitch(config.telemetry_level, environment.set_telemetry_level)
        self._failures = LogDirFailureChannel(max_dirs=1)
        self._log_dir = make_log_dir(
            config, environment, config.metadata_dir, failures=self._failures
        )
        self._controller: QuorumController | None = None
        self._quorum: QuorumWiring | None = None
        self._registration: ControllerRegistration | None = None
        self._peers = ClusterPeers(
            config.allowed_hosts,
            known_hosts=hosts_known_to_controller(config, self._state, self._quorum_hosts),
        )
        self._tls = NodeTls(config, environment)
        self._listener: Listener | None = None
        self._cluster_id = ""
        self._parts = PartList(
            (
                Part(name="metadata dir", start=self._open_dir, close=self._close_dir),
                Part(
                    name="certificates",
                    start=self._tls.open_listeners,
                    close=self._tls.close,
                    failed=self._tls.run_renewals,
                ),
                Part(name="controller", start=self._start_controller, close=self._stop_controller),
                Part(
                    name="listener",
                    start=self._start_listener,
                    close=self._close_listener,
                    failed=self._lost,
                ),
                Part(name="cluster peers", failed=self._peers.resolve_periodically),
                Part(name="registration", failed=self._register),
            )
        )

    @property
    def controller(self) -> QuorumController | None:
        """The controller, for inspection only; None until the metadata directory is open."""
        return self._controller

    @property
    def has_figures(self) -> bool:
        return self._controller is not None

    async def start(self) -> None:
        await self._parts.start()

    async def wait_failed(self) -> None:
        await self._parts.wait_failed()

    async def stop(self) -> None:
        await self._parts.close()

    # --- up --------------------------------------------------------------------------------------

    async def _open_dir(self) -> None:
        config = self._config
        self._cluster_id = await DirOpener(
            log_dirs=[self._log_dir],
            metadata_dir=self._log_dir.path,
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            random_bytes=self._environment.random_bytes,
            timeout_ms=config.log_dir_io_timeout_ms,
        ).open()

    async def _start_controller(self) -> None:
        log_dir = self._log_dir
        quorum = QuorumWiring(
            self._config,
            self._environment,
            log_dir,
            self._cluster_id,
            self._tls.dialer_of(self._config.controller_listener),
        )
        await quorum.open()
        self._quorum = quorum
        features, voters, users = await log_dir.run_operation(
            OpKind.START,
            lambda: (
                read_bootstrap(log_dir.vfs, log_dir.path),
                read_bootstrap_voters(log_dir.vfs, log_dir.path),
                read_bootstrap_users(log_dir.vfs, log_dir.path),
            ),
        )
        driver = self._build_driver(quorum, self._first_voters(voters))
        self._controller = self._build_controller(self._cluster_id, features, users, driver, quorum)
        mark = f"{log_dir.path}/{FORK_MARK}"
        fork = await log_dir.run_operation(OpKind.START, lambda: log_dir.vfs.exists(mark))
        if fork and len(self._config.controller_quorum_voters) > 1:
            raise StartupError(
                f"{mark} requests another metadata log, which only a quorum of one controller may "
                "start: name only this controller in controller.quorum.voters, start it, and add "
                "the others afterwards, with metadata directories that are formatted again"
            )
        await self._controller.start(fork=self._alone() if fork else None)
        if fork:
            # After the fork is written, and before any other node can connect.
            await log_dir.run_operation(
                OpKind.START, lambda: forget_fork(log_dir.vfs, log_dir.path)
            )
            self._log.warning("metadata_log_forked", metadata_dir=log_dir.path)

    async def _start_listener(self) -> None:
        assert self._controller is not None, "it starts before the listener"
        self._listener = self._build_listener(self._controller)
        await self._listener.start()
        self._log.info(
            "controller_started",
            host=self._config.endpoint.host,
            port=self._listener.port,
            cluster_id=self._cluster_id,
            metadata_dir=self._log_dir.path,
        )

    # --- while it runs ---------------------------------------------------------------------------

    async def _register(self) -> None:
        """Keep this controller registered; never return. Registration runs beside the other parts,
        because a start must not wait for a majority of the voters.
        """
        assert self._registration is not None, "it is built with the controller"
        await self._registration.run_registration()

    async def _send_registration(self, request: ControllerRegistrationRequest) -> RpcResponse:
        assert self._controller is not None and self._quorum is not None, "they start before"
        if self._controller.is_active:
            return await self._controller.handle(request)
        return await self._quorum.ask_leader(request)

    async def _lost(self) -> None:
        assert self._controller is not None, "it starts before the listener"
        log = asyncio.create_task(self._controller.wait_failed())
        dir_failure = asyncio.create_task(self._lose_dir())
        try:
            done, _ = await asyncio.wait({log, dir_failure}, return_when=asyncio.FIRST_COMPLETED)
            if dir_failure in done:
                raise self._log_dir.offline_error()
            log.result()
        finally:
            log.cancel()
            dir_failure.cancel()
            await asyncio.gather(log, dir_failure, return_exceptions=True)

    async def _lose_dir(self) -> None:
        """Return when the metadata directory is offline."""
        while self._log_dir.is_online:
            await self._failures.take()

    # --- down ------------------------------------------------------------------------------------

    async def _close_listener(self) -> None:
        if self._controller is not None:
            self._controller.release_waits()
        if self._listener is not None:
            await self._listener.close(timeout_ms=self._config.shutdown_timeout_ms // 2)

    async def _stop_controller(self) -> None:
        if self._controller is not None:
            await self._controller.stop()
        if self._quorum is not None:
            await self._quorum.close()

    async def _close_dir(self) -> None:
        self._log_dir.close()
        await self._log_dir.unlocked()

    def status(self) -> str:
        doing = "starting" if self._listener is None else "running"
        return f"{doing}; {dirs_text([self._log_dir])}"

    def _build_controller(
        self,
        cluster_id: str,
        features: Mapping[str, int],
        users: Sequence[ScramUser],
        driver: RaftDriver,
        quorum: QuorumWiring,
    ) -> QuorumController:
        config, environment = self._config, self._environment
        make_managers = partial(
            ControlManagers,
            cluster_id=cluster_id,
            in_file=config,
            node_id=config.node_id,
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            random_bytes=environment.random_bytes,
            draw_below=environment.rng.randrange,
            controllers=quorum.supported_features,
            may_delete_topics=config.delete_topic_enable,
            make_authorizer=partial(build_authorizer, config),
            node_principals=config.node_principals or NO_NODES,
            node_mechanism=config.sasl_mechanism_inter_broker_protocol,
        )
        self._registration = self._build_registration(cluster_id)
        return QuorumController(
            make_managers=make_managers,
            driver=driver,
            clock=environment.clock,
            metrics=environment.metrics,
            features=features,
            users=users,
            min_insync_replicas=config.min_insync_replicas,
            is_refused=is_refused,
            directories=quorum.directories,
            replayed=self._note_metadata,
            log_id_committed=quorum.note_log_id,
        )

    def _build_registration(self, cluster_id: str) -> ControllerRegistration:
        config, environment = self._config, self._environment
        listener = config.advertised_endpoint
        return ControllerRegistration(
            request=ControllerRegistrationRequest(
                controller_id=config.node_id,
                cluster_id=cluster_id,
                incarnation_id=Uuid.random(environment.random_bytes),
                directory_id=self._log_dir.directory_id,
                listeners=(
                    ListenerInfo(name=listener.name, host=listener.host, port=listener.port),
                ),
                features=environment.features,
                software_version=package_version(),
            ),
            state=self._state,
            send=self._send_registration,
            backoff=ExponentialBackoff(
                initial_ms=_REGISTRATION_BACKOFF_MS[0],
                max_ms=_REGISTRATION_BACKOFF_MS[1],
                random_unit=environment.rng.random,
            ),
        )

    def _note_metadata(self) -> None:
        """Apply the telemetry level of the metadata, and check the registration again."""
        if self._controller is not None and self._registration is not None:
            self._level.take(self._controller.settings.telemetry_level)
            self._registration.note_metadata()

    def _state(self) -> MetadataState:
        assert self._controller is not None, "the state is read only after the start"
        return self._controller.state

    def _quorum_hosts(self) -> Iterable[str]:
        return () if self._quorum is None else self._quorum.hosts()

    def _alone(self) -> VoterSet:
        """Return a voter set that contains only this controller."""
        key = ReplicaKey(self._config.node_id, self._log_dir.directory_id)
        return VoterSet((Voter(key, (self._config.advertised_endpoint.text,)),))

    def _first_voters(self, formatted: bytes | None) -> VoterSet:
        """Return the voters of a new metadata log.

        :param formatted: the encoded voter set that ``kraftjbod-storage format`` stored; None for
            the voters of ``controller.quorum.voters``.
        """
        return _voters(self._config) if formatted is None else VoterSet.decode(formatted)

    def _build_driver(self, quorum: QuorumWiring, voters: VoterSet) -> RaftDriver:
        config, environment = self._config, self._environment
        driver = RaftDriver(
            log_dir=self._log_dir,
            store=RaftLogStore(
                vfs=self._log_dir.vfs,
                directory=f"{self._log_dir.path}/{CLUSTER_METADATA_DIR}",
                segment_bytes=config.metadata_log_segment_bytes,
                retained_entries=config.metadata_log_retained_entries,
            ),
            clock=environment.clock,
            node_id=config.node_id,
            voters=voters,
            directory_id=self._log_dir.directory_id,
            first_payload_of_term=NO_RECORDS,
            bytes_between_snapshots=config.metadata_log_max_record_bytes_between_snapshots,
            max_cached_bytes=config.metadata_max_cached_bytes,
            max_pending_proposals=config.controller_max_queued_events,
            kept_free_bytes=config.metadata_log_min_free_bytes,
            retry_interval_ms=config.log_dir_check_interval_ms,
            start_timeout_ms=config.log_dir_io_timeout_ms,
            transport=quorum,
            draw_below=environment.rng.randrange,
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
        )
        quorum.attach(driver)
        return driver

    async def _handle(self, request: RpcRequest, connection: ConnectionId) -> RpcResponse:
        assert self._controller is not None, "it starts before the listener"
        if isinstance(request, DescribeControllerConfigsRequest):
            return DescribeControllerConfigsResponse(
                controller_id=self._config.node_id,
                configs=described_settings(
                    self._config, self._controller.settings, self._controller.state.configs
                ),
            )
        if not isinstance(request, QuorumMessagesRequest):
            response = await self._controller.handle(request, connection)
            if isinstance(response, DescribeQuorumResponseRpc) and self._quorum is not None:
                response = response.model_copy(update={"refusal": self._quorum.refusal})
            return response
        assert self._quorum is not None, "it comes before the controller"
        return await self._quorum.receive(request)

    def _is_of_cluster(self, request: RpcRequest) -> bool:
        """Return whether only a broker or a controller of this cluster can have sent ``request``.

        The listener counts the connection of such a sender as a member's.
        """
        assert self._controller is not None, "it starts before the listener"
        if isinstance(request, QuorumMessagesRequest):
            return self._quorum is not None and self._quorum.speaks_here(request)
        return self._controller.is_of_registered_broker(request)

    def _sasl_settings(self) -> SaslSettings | None:
        name = self._config.endpoint.name
        if self._config.protocol_of(name) not in SASL_PROTOCOLS:
            return None
        return sasl_settings(
            self._config.of_listener(name),
            memory_before_login(self._config),
            state=self._state,
            cluster_id=self._cluster_id,
            random_bytes=self._environment.random_bytes,
            wall_ms=self._environment.clock.wall_ms,
        )

    def _build_listener(self, controller: QuorumController) -> Listener:
        config = self._config
        return rpc_server(
            host=config.endpoint.host,
            port=config.endpoint.port,
            handler=self._handle,
            peers=self._peers,
            is_broker=self._is_of_cluster,
            on_peer_closed=controller.connection_closed,
            memory=memory_budget(config),
            limits=controller_listener_limits(config, self._environment.max_open_files),
            tls=self._tls.settings_of(config.endpoint.name),
            sasl=self._sasl_settings(),
            listener_name=config.endpoint.name,
            node_principals=config.node_principals_of(config.endpoint.name),
        )


def _voters(config: ControllerConfig) -> VoterSet:
    """Return the voters of ``controller.quorum.voters``, which have no directory ids."""
    name = config.endpoint.name
    return VoterSet(
        tuple(
            Voter(ReplicaKey(voter.node_id), (Endpoint(name, voter.host, voter.port).text,))
            for voter in config.controller_quorum_voters
        )
    )


def main() -> NoReturn:
    Collector().watch()
    sys.exit(run_daemon("controller", ControllerConfig, ControllerServer))


if __name__ == "__main__":
    main()
