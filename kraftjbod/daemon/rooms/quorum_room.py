"""WIRE. The controller's side towards the other controllers: links to each, and who may speak."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.net.peer_link import PeerLink
from kraftjbod.protocol.rpc_quorum_messages import (
    MAX_MESSAGES,
    QuorumMessagesRequest,
    QuorumMessagesResponse,
)
from kraftjbod.raft import wire
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.known_voters import KnownVoters
from kraftjbod.raft.machine.messages import Message
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.dirs.log_dir import LogDir

#: Kafka's: a controller that was away is asked again soon.
_BACKOFF_MS = (50, 500)
_MAX_BATCH_BYTES = 1024 * 1024
_REFUSAL_INTERVAL_MS = 30_000


class QuorumRoom:
    """The ``RaftTransport`` of a controller that is not alone; for the loop's thread."""

    def __init__(
        self, config: ControllerConfig, around: Environment, log_dir: LogDir, cluster_id: str
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._clock = around.clock
        self._log_dir = log_dir
        self._driver: RaftDriver | None = None
        self._known = KnownVoters(
            log_dir=log_dir, directory=f"{log_dir.path}/{CLUSTER_METADATA_DIR}"
        )
        backoff = ExponentialBackoff(
            initial_ms=_BACKOFF_MS[0], max_ms=_BACKOFF_MS[1], random_unit=around.rng.random
        )
        self._links = {
            voter.node_id: PeerLink(
                voter.host,
                voter.port,
                make_request=partial(self._request, voter.node_id),
                size_of=wire.size_bytes_of,
                backoff=backoff,
                timeout_ms=config.controller_quorum_request_timeout_ms,
                max_queued=config.controller_quorum_max_queued_messages,
                max_queued_bytes=config.controller_quorum_max_queued_bytes,
                max_batch=MAX_MESSAGES,
                max_batch_bytes=_MAX_BATCH_BYTES,
                on_lost=partial(self._lost, voter.node_id),
                on_refused=partial(self._refused, voter.node_id),
            )
            for voter in config.controller_quorum_voters
            if voter.node_id != config.node_id
        }
        #: When each peer's refusal may be logged again.
        self._refusal_due_ms: dict[BrokerId, int] = {}
        self._log = get_logger(component="quorum", node_id=config.node_id)

    async def open(self) -> None:
        """:raises InconsistentStorageError: what is known of the voters cannot be read."""
        await self._known.load()

    def attach(self, driver: RaftDriver) -> None:
        """Whom messages that come are for."""
        self._driver = driver

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()

    # --- out -------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self._links[message.to.node_id].send(message)

    def _request(self, to: BrokerId, messages: Sequence[Message]) -> QuorumMessagesRequest:
        return QuorumMessagesRequest(
            cluster_id=self._cluster_id,
            sender_id=self._config.node_id,
            sender_directory_id=self._log_dir.directory_id,
            receiver_id=to,
            messages=tuple(map(wire.body_of, messages)),
        )

    def _lost(self, voter: BrokerId) -> None:
        if self._driver is not None:
            self._driver.note_connection_lost(voter)

    def _refused(self, voter: BrokerId, error: OperatingError) -> None:
        """It goes on being refused until an operator has put it right: said now and then."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._refusal_due_ms.get(voter, now_ms):
            self._refusal_due_ms[voter] = now_ms + _REFUSAL_INTERVAL_MS
            self._log.error("controller_refused_by_peer", peer=voter, reason=error.message)

    # --- in --------------------------------------------------------------------------------------

    def speaks_here(self, request: QuorumMessagesRequest) -> bool:
        """Whether only another controller of this quorum can have sent it."""
        return request.cluster_id == self._cluster_id and request.sender_id in self._links

    async def receive(self, request: QuorumMessagesRequest) -> QuorumMessagesResponse:
        """:raises OperatingError: who speaks is none of this quorum, or not what it was."""
        if request.cluster_id != self._cluster_id:
            raise OperatingError(
                f"controller {self._config.node_id} is of cluster {self._cluster_id}, not of "
                f"{request.cluster_id}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        if request.receiver_id != self._config.node_id or request.sender_id not in self._links:
            raise OperatingError(
                f"controller {request.sender_id} takes this one for {request.receiver_id}, but it "
                f"is {self._config.node_id}, and its controller.quorum.voters are "
                f"{sorted([*self._links, self._config.node_id])}; make that key the same in all "
                "controllers' files",
                code=ErrorCode.INVALID_VOTER_KEY,
            )
        if not self._known.is_known(request.sender_id, request.sender_directory_id):
            await self._known.require(request.sender_id, request.sender_directory_id)
        assert self._driver is not None, "the door opens after the driver"
        for message in wire.messages_in(request):
            self._driver.receive(message)
        return QuorumMessagesResponse()
