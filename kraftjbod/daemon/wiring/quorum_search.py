"""WIRE. ``QuorumSearch``: finds the quorum for a controller that has no vote and knows no leader.

Any controller at a configured address names the voters. This controller then asks the voters for
the log, which the leader sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.task_end import raise_task_error
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
)
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.machine.voter_set import ReplicaKey


class QuorumSearch:
    """Asks the configured controllers for the voters, and passes the voters to the Raft driver.

    The search runs only while the driver has no vote and knows no leader. Use the object in the
    event loop's thread only.
    """

    def __init__(
        self,
        *,
        addresses: Sequence[tuple[str, int]],
        interval_ms: int,
        timeout_ms: int,
        backoff: ExponentialBackoff,
        found: Callable[[Mapping[ReplicaKey, str]], None],
        dialer: Dialer = PLAIN,
    ) -> None:
        """:param addresses: host and port of the configured controllers.
        :param interval_ms: pause between two rounds.
        :param timeout_ms: timeout of each request.
        :param found: called with the addresses of the voters, before they are asked for the log.
        :param dialer: opens the connections.
        """
        self._clients = [
            RpcClient(host, port, backoff=backoff, dialer=dialer) for host, port in addresses
        ]
        self._interval_ms = interval_ms
        self._timeout_ms = timeout_ms
        self._found = found
        #: The last error by which a controller refused the host of this one.
        self._refusal: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger(component="quorum")

    def begin_search(self, driver: RaftDriver) -> None:
        self._task = asyncio.create_task(self._run(driver), name="quorum_search")
        self._task.add_done_callback(raise_task_error)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for client in self._clients:
            client.close()

    async def _run(self, driver: RaftDriver) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            if not driver.seeks_leader:
                continue
            for client in self._clients:
                try:
                    answer = await client.call(
                        DescribeQuorumRequestRpc(of_any=True), timeout_ms=self._timeout_ms
                    )
                except OperatingError as e:
                    self._note_failure(e)
                    continue
                assert isinstance(answer, DescribeQuorumResponseRpc), answer
                self._ask(driver, answer)

    def _note_failure(self, error: OperatingError) -> None:
        """Log a failed request: a new refusal as a warning, other failures at debug level.

        Failures are normal during an election.
        """
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._log.debug("quorum_search_failed", reason=error.message)
        elif error.message != self._refusal:
            self._refusal = error.message
            self._log.warning("quorum_search_refused", reason=error.message)

    def _ask(self, driver: RaftDriver, answer: DescribeQuorumResponseRpc) -> None:
        endpoints = {
            ReplicaKey(voter.node_id, voter.directory_id): voter.endpoints[0]
            for voter in answer.voters
            if voter.endpoints
        }
        self._found(endpoints)
        driver.ask_for_log(endpoints)
