"""WIRE. ``QuorumWiring``: connects a controller to the other controllers, and checks senders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import (
    ErrorCode,
    ForeignMetadataError,
    NotControllerError,
    OperatingError,
)
from kraftjbod.core.ids import BrokerId, DirectoryId, Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.core.telemetry import get_logger
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.quorum_search import QuorumSearch
from kraftjbod.daemon.wiring.static_quorum import StaticQuorum
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.peer_link import PeerLink
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import (
    MAX_MESSAGES,
    QuorumMessagesRequest,
    QuorumMessagesResponse,
)
from kraftjbod.raft import wire
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.known_log_id import KnownLogId
from kraftjbod.raft.log.known_voters import KnownVoters
from kraftjbod.raft.machine.messages import Message
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.log_dirs.log_dir import LogDir

#: Kafka's values, so that a controller that was away is contacted again soon.
_BACKOFF_MS: Final = (50, 500)
_MAX_BATCH_BYTES: Final = 1024 * 1024
_REFUSAL_INTERVAL_MS: Final = 30_000
#: A refused controller receives the refusal with each heartbeat of the leader.
REFUSAL_STANDS_MS: Final = 5_000
#: Maximum number of non-voters whose addresses are remembered; the oldest is dropped first.
_MAX_HEARD: Final = 100


FeatureRanges = Mapping[str, tuple[int, int]]
"""Lowest and highest level by feature."""


class QuorumWiring:
    """The ``RaftTransport`` of a controller: exchanges Raft messages with the other controllers.

    A voter is reached at the address in the voter set, any other replica at the address that it
    sent. Use in the event loop's thread only.
    """

    def __init__(
        self,
        config: ControllerConfig,
        environment: Environment,
        log_dir: LogDir,
        cluster_id: str,
        dialer: Dialer = PLAIN,
    ) -> None:
        """:param dialer: opens the connections to other controllers."""
        self._config = config
        self._cluster_id = cluster_id
        self._dialer = dialer
        self._clock = environment.clock
        self._features = environment.features
        self._log_dir = log_dir
        self._driver: RaftDriver | None = None
        self._known = KnownVoters(
            log_dir=log_dir, directory=f"{log_dir.path}/{CLUSTER_METADATA_DIR}"
        )
        self._log_id = KnownLogId(
            log_dir=log_dir,
            directory=f"{log_dir.path}/{CLUSTER_METADATA_DIR}",
            retry_interval_ms=config.log_dir_check_interval_ms,
        )
        self._backoff = ExponentialBackoff(
            initial_ms=_BACKOFF_MS[0], max_ms=_BACKOFF_MS[1], random_unit=environment.rng.random
        )
        self._search = QuorumSearch(
            addresses=config.controller_addresses,
            interval_ms=config.controller_quorum_election_timeout_ms,
            timeout_ms=config.controller_quorum_request_timeout_ms,
            backoff=self._backoff,
            found=self._remember_addresses,
            dialer=dialer,
        )
        self._links: dict[ReplicaKey, tuple[Endpoint, PeerLink[Message]]] = {}
        self._heard: dict[ReplicaKey, Endpoint] = {}
        #: Feature levels that each replica sent with its last messages.
        self._supported: dict[ReplicaKey, FeatureRanges] = {}
        #: The leader's last refusal of this controller, and its time.
        self._leaders_refusal = ("", 0)
        #: In a static quorum: voters whose version can read entries about voters.
        self._able: set[BrokerId] = set()
        self._static = StaticQuorum(
            node_id=config.node_id,
            known=self._known,
            backoff=self._backoff,
            introduce=self._introduce,
            ask=self._ask_for_directories,
        )
        #: Per peer, when its refusal, or that it has another log, may be logged again.
        self._refusal_due_ms: dict[BrokerId, int] = {}
        self._foreign_due_ms: dict[BrokerId, int] = {}
        self._log = get_logger(component="quorum", node_id=config.node_id)

    async def open(self) -> None:
        """Load the recorded disks of voters and the recorded id of the metadata log.

        :raises InconsistentStorageError: one of the two files is damaged.
        """
        await self._known.load()
        await self._log_id.load()

    def attach(self, driver: RaftDriver) -> None:
        """Set the driver that receives the messages, and start the background tasks."""
        self._driver = driver
        self._search.begin_search(driver)
        if driver.voters.is_static:
            self._static.begin_introduction(lambda: self._voters)

    async def close(self) -> None:
        await self._static.stop()
        await self._search.stop()
        await self._log_id.stop()
        for _, link in self._links.values():
            await link.close()

    def note_log_id(self, log_id: Uuid | None) -> None:
        """Record the id of the metadata log, whose entry is committed; None has no effect.

        The file is written in the background.
        """
        self._log_id.note(log_id)

    def directories(self) -> Mapping[BrokerId, DirectoryId]:
        """Return the recorded directory of each controller in a static quorum, with this
        controller's.

        Controllers of older versions are omitted, because they cannot read an entry that names
        voters.
        """
        known = self._known.directories
        able = {node_id: known[node_id] for node_id in self._able & known.keys()}
        return {**able, self._config.node_id: self._log_dir.directory_id}

    def supported_features(self) -> Mapping[BrokerId, FeatureRanges]:
        """Return the feature levels of each voter; empty for a voter that has not sent them.

        Used only below the ``metadata.version`` from which on controllers register.
        """
        ranges = {self._voters.known_as(key): said for key, said in self._supported.items()}
        found = {key.node_id: ranges.get(key, {}) for key in self._voters}
        return {**found, self._config.node_id: self._features}

    @property
    def _voters(self) -> VoterSet:
        assert self._driver is not None, "messages are exchanged only after the driver starts"
        return self._driver.voters

    def hosts(self) -> Iterable[str]:
        """Return the hosts of the voters, and of other controllers that sent their addresses."""
        for key in self._voters:
            yield from (Endpoint.parse(said).host for said in self._voters.endpoints_of(key))
        yield from (endpoint.host for endpoint in self._heard.values())

    # --- out -------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        link = self._link(message.to)
        if link is not None:
            link.send(message)

    def _link(self, to: ReplicaKey) -> PeerLink[Message] | None:
        """Return the connection to a replica, created on demand; None if its address is not
        known."""
        endpoint = self._endpoint_of(to)
        if endpoint is None:
            return None
        known = self._links.get(to)
        if known is not None:
            if known[0] == endpoint:
                return known[1]
            known[1].abandon()
        link = self._make_link(to, endpoint)
        self._links[to] = endpoint, link
        return link

    def _endpoint_of(self, key: ReplicaKey) -> Endpoint | None:
        said = self._voters.endpoints_of(key)
        return Endpoint.parse(said[0]) if said else self._heard.get(key)

    def _make_link(self, to: ReplicaKey, endpoint: Endpoint) -> PeerLink[Message]:
        config = self._config
        return PeerLink(
            endpoint.host,
            endpoint.port,
            make_request=partial(self._request, to),
            size_of=wire.size_bytes_of,
            backoff=self._backoff,
            timeout_ms=config.controller_quorum_request_timeout_ms,
            max_queued=config.controller_quorum_max_queued_messages,
            max_queued_bytes=config.controller_quorum_max_queued_bytes,
            max_batch=MAX_MESSAGES,
            max_batch_bytes=_MAX_BATCH_BYTES,
            on_lost=partial(self._lost, to.node_id),
            on_refused=partial(self.note_refusal, to.node_id),
            dialer=self._dialer,
        )

    def _request(self, to: ReplicaKey, messages: Sequence[Message]) -> QuorumMessagesRequest:
        return QuorumMessagesRequest(
            cluster_id=self._cluster_id,
            sender_id=self._config.node_id,
            sender_directory_id=self._log_dir.directory_id,
            receiver_id=to.node_id,
            receiver_directory_id=to.directory_id,
            sender_endpoint=self._config.advertised_endpoint.text,
            sender_features=self._features,
            metadata_log_id=self._log_id.value,
            messages=tuple(map(wire.body_of, messages)),
        )

    def _lost(self, voter: BrokerId) -> None:
        if self._driver is not None:
            self._driver.note_connection_lost(voter)

    def note_refusal(self, voter: BrokerId, error: OperatingError) -> None:
        """Log that ``voter`` refuses this controller, at most every 30 s per voter. If ``voter`` is
        the leader, record its reason for :attr:`refusal`.

        A refusal repeats until an operator acts.
        """
        now_ms = self._clock.now_ms()
        if self._driver is not None and voter == self._driver.leader:
            self._leaders_refusal = error.message, now_ms
        if self._is_due(self._refusal_due_ms, voter):
            self._log.error("controller_refused_by_peer", peer=voter, reason=error.message)

    def _is_due(self, due_ms: dict[BrokerId, int], peer: BrokerId) -> bool:
        """Return whether an event about ``peer`` may be logged now; if so, restart its interval."""
        now_ms = self._clock.now_ms()
        if now_ms < due_ms.get(peer, now_ms) or (peer not in due_ms and len(due_ms) >= _MAX_HEARD):
            return False
        due_ms[peer] = now_ms + _REFUSAL_INTERVAL_MS
        return True

    @property
    def refusal(self) -> str | None:
        """The leader's reason to refuse this controller; None if it did not in the last 5 s."""
        reason, at_ms = self._leaders_refusal
        return reason if reason and self._clock.now_ms() - at_ms < REFUSAL_STANDS_MS else None

    async def ask_leader(self, request: RpcRequest) -> RpcResponse:
        """Send ``request`` to the leader of the quorum, and return the response.

        :raises OperatingError: the leader is unknown, cannot be reached, or refuses the request.
        """
        leader = None if self._driver is None else self._driver.core.leader
        endpoint = None if leader is None else self._endpoint_of(leader)
        if endpoint is None:
            raise NotControllerError("no leader is known, or its address is not")
        return await self._call(endpoint, request)

    async def _call(
        self, endpoint: Endpoint, request: RpcRequest, timeout_ms: int | None = None
    ) -> RpcResponse:
        client = RpcClient(endpoint.host, endpoint.port, backoff=self._backoff, dialer=self._dialer)
        timeout_ms = timeout_ms or self._config.controller_quorum_request_timeout_ms
        try:
            response: RpcResponse = await client.call(request, timeout_ms=timeout_ms)
        finally:
            client.close()
        return response

    async def _introduce(self, voter: ReplicaKey) -> bool:
        endpoint = self._endpoint_of(voter)
        if endpoint is None:
            return True  # Other voters are in force by now, which the log names.
        try:
            await self._call(endpoint, self._request(voter, ()))
        except OperatingError:
            return False  # It is away, or refuses this disk until an operator acts.
        return True

    async def _ask_for_directories(self, voter: ReplicaKey) -> Mapping[BrokerId, DirectoryId]:
        endpoint = self._endpoint_of(voter)
        if endpoint is None:
            return {}
        question = self._request(voter, ()).model_copy(update={"asks_for_directories": True})
        # The controller whose disk is being checked waits meanwhile, and its request times out.
        timeout_ms = self._config.controller_quorum_request_timeout_ms // 4
        answer = await self._call(endpoint, question, max(1, timeout_ms))
        assert isinstance(answer, QuorumMessagesResponse), answer
        return answer.directories

    # --- in --------------------------------------------------------------------------------------

    def speaks_here(self, request: QuorumMessagesRequest) -> bool:
        """Return whether ``request`` names this cluster and, as its sender, another voter."""
        return (
            request.cluster_id == self._cluster_id
            and request.sender_id != self._config.node_id
            and self._voters.known_as(_sender(request)) in self._voters
        )

    async def receive(self, request: QuorumMessagesRequest) -> QuorumMessagesResponse:
        """Check the sender, and pass the messages of ``request`` to the Raft driver.

        If the sender asks for the recorded directories, return those instead.

        :raises OperatingError: the sender is not a member of this quorum, takes this controller for
            another one, has another metadata log, or has a replaced disk.
        """
        if request.cluster_id != self._cluster_id:
            raise OperatingError(
                f"controller {self._config.node_id} is of cluster {self._cluster_id}, not of "
                f"{request.cluster_id}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        self._require_receiver(request)
        self._require_same_log(request)
        if request.asks_for_directories:
            return QuorumMessagesResponse(directories=dict(self._known.directories))
        # A sender that names this directory has a log that names voters, which began later.
        if self._voters.is_static and request.receiver_directory_id is None:
            await self._require_static_voter(request)
        elif request.sender_endpoint:
            self._remember_addresses({_sender(request): request.sender_endpoint})
        self._note_features(request)
        assert self._driver is not None, "the listener opens after the driver"
        for message in wire.messages_in(request, self._known_as):
            self._driver.receive(message)
        return QuorumMessagesResponse()

    def _known_as(self, key: ReplicaKey) -> ReplicaKey:
        """Return the key of a replica in the voter set in force.

        In a static quorum, the voters are known by node id. A replica whose disk is not the
        recorded one of that node keeps its own key, so that its votes and acknowledgements do not
        count as the voter's.
        """
        is_other = (
            self._voters.is_static
            and key.directory_id is not None
            and key.node_id != self._config.node_id
            and not self._known.is_known(key.node_id, key.directory_id)
        )
        return key if is_other else self._voters.known_as(key)

    def _note_features(self, request: QuorumMessagesRequest) -> None:
        sender = _sender(request)
        if self._supported.get(sender) == request.sender_features:
            return
        self._supported.pop(sender, None)
        self._supported[sender] = request.sender_features
        while len(self._supported) > _MAX_HEARD:
            del self._supported[next(iter(self._supported))]

    def _require_receiver(self, request: QuorumMessagesRequest) -> None:
        node_id, directory_id = self._config.node_id, self._log_dir.directory_id
        if request.receiver_id != node_id or request.sender_id == node_id:
            raise self._refusal(request)
        if request.receiver_directory_id not in (None, directory_id):
            raise OperatingError(
                f"controller {request.sender_id} takes this one for {node_id} with directory "
                f"{request.receiver_directory_id}, but it has {directory_id}: remove the former "
                "one from the voters, and add this one, with kraftjbod-metadata-quorum",
                code=ErrorCode.INVALID_VOTER_KEY,
            )

    def _require_same_log(self, request: QuorumMessagesRequest) -> None:
        """Check that the sender does not have another metadata log.

        :raises ForeignMetadataError: it has; the mismatch is logged at most once per 30 s and
            sender.
        """
        ours, theirs = self._log_id.value, request.metadata_log_id
        if ours is None or theirs is None or ours == theirs:
            return
        if self._is_due(self._foreign_due_ms, request.sender_id):
            self._log.error(
                "controller_of_another_log",
                peer=request.sender_id,
                metadata_log_id=str(ours),
                metadata_log_id_of_peer=str(theirs),
            )
        raise ForeignMetadataError(
            f"controller {self._config.node_id} holds metadata log {ours}, and controller "
            f"{request.sender_id} holds {theirs}: one of them was formatted as a separate quorum "
            "(--standalone). Stop that one, format its metadata directory again with "
            "--no-initial-controllers, and add it to the voters with kraftjbod-metadata-quorum"
        )

    async def _require_static_voter(self, request: QuorumMessagesRequest) -> None:
        """Check the sender in a static quorum: it must be a configured voter, on its recorded disk.

        :raises OperatingError: INVALID_VOTER_KEY.
        """
        if self._voters.known_as(_sender(request)) not in self._voters:
            raise self._refusal(request)
        await self._static.require(request.sender_id, request.sender_directory_id, self._voters)
        # Only versions that can read voters in the log send their address.
        (self._able.add if request.sender_endpoint else self._able.discard)(request.sender_id)

    def _refusal(self, request: QuorumMessagesRequest) -> OperatingError:
        return OperatingError(
            f"controller {request.sender_id} takes this one for {request.receiver_id}, but it "
            f"is {self._config.node_id}, and its controller.quorum.voters are "
            f"{sorted(key.node_id for key in self._voters)}; make that key the same in all "
            "controllers' files, or raise kraft.version to 1 and add it as a voter",
            code=ErrorCode.INVALID_VOTER_KEY,
        )

    def _remember_addresses(self, endpoints: Mapping[ReplicaKey, str]) -> None:
        """Remember the addresses of replicas; malformed addresses are ignored."""
        for key, text in endpoints.items():
            try:
                endpoint = Endpoint.parse(text)
            except ValueError:
                continue
            self._heard.pop(key, None)
            self._heard[key] = endpoint
            while len(self._heard) > _MAX_HEARD:
                del self._heard[next(iter(self._heard))]


def _sender(request: QuorumMessagesRequest) -> ReplicaKey:
    return ReplicaKey(request.sender_id, request.sender_directory_id)
