"""WIRE. ``StaticQuorum``: checks the disks of voters while the metadata log does not name voters.

The voters are those of ``controller.quorum.voters``, known by their node ids alone. The promises of
a voter (its term and vote) are lost with its disk, so a node with a new disk must not vote. Each
controller therefore records the disk from which the first message of a voter came
(``KnownVoters``). Two steps precede the record:

* Each voter introduces itself to all others. Without that, two followers would exchange no
  messages.
* If no disk of the sender is recorded, the other voters are asked whether they have recorded one.
  Voters that do not respond are ignored, because no quorum could start otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.loop.task_end import raise_task_error
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.raft.log.known_voters import KnownVoters
from kraftjbod.raft.log.static_voters import VOTER_DIRECTORIES
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

Directories = Mapping[BrokerId, DirectoryId]


class StaticQuorum:
    """Requires that each voter of a static quorum still uses the disk that was recorded for it.

    Use in the event loop's thread only.
    """

    def __init__(
        self,
        *,
        node_id: BrokerId,
        known: KnownVoters,
        backoff: ExponentialBackoff,
        introduce: Callable[[ReplicaKey], Awaitable[bool]],
        ask: Callable[[ReplicaKey], Awaitable[Directories]],
    ) -> None:
        """:param introduce: introduce this controller to a voter; return False to try again later.
        :param ask: return all directories that a voter has recorded; raises OperatingError.
        """
        self._node_id = node_id
        self._known = known
        self._backoff = backoff
        self._introduce = introduce
        self._ask = ask
        self._introducing: asyncio.Task[None] | None = None

    def begin_introduction(self, voters: Callable[[], VoterSet]) -> None:
        """Introduce this controller to each voter, in a background task.

        The task ends when all voters know this controller, or when the log names voters.

        :param voters: return the voter set in force.
        """
        self._introducing = asyncio.create_task(
            self._introduce_to_all(voters), name="static_quorum"
        )
        self._introducing.add_done_callback(raise_task_error)

    async def stop(self) -> None:
        if self._introducing is not None:
            self._introducing.cancel()
            await asyncio.gather(self._introducing, return_exceptions=True)

    async def require(self, node: BrokerId, directory: DirectoryId, voters: VoterSet) -> None:
        """Check that ``directory`` is the recorded disk of ``node``; record it if no voter has
        another.

        :raises OperatingError: INVALID_VOTER_KEY: another disk is recorded; the message says what
            to do.
        """
        if self._known.is_known(node, directory):
            return
        if node not in self._known.directories:
            await asyncio.gather(
                *(
                    self._require_not_replaced(node, directory, other)
                    for other in voters
                    if other.node_id not in (node, self._node_id)
                )
            )
        await self._known.require(node, directory)

    async def _require_not_replaced(
        self, node: BrokerId, directory: DirectoryId, other: ReplicaKey
    ) -> None:
        try:
            known = (await self._ask(other)).get(node, directory)
        except OperatingError:
            return
        if known != directory:
            raise OperatingError(
                f"controller {node} uses directory {directory}, but controller {other.node_id} "
                f"recorded its votes from directory {known}: the new directory lacks them. "
                f"If the disk of {known} is lost permanently and all other controllers run, stop "
                f"controller {other.node_id}, remove {VOTER_DIRECTORIES} beside its metadata log, "
                "start it, and do the same with the next",
                code=ErrorCode.INVALID_VOTER_KEY,
            )

    async def _introduce_to_all(self, voters: Callable[[], VoterSet]) -> None:
        waiting, rounds = [key for key in voters() if key.node_id != self._node_id], 0
        while waiting and voters().is_static:
            waiting = [key for key in waiting if not await self._introduce(key)]
            rounds += 1
            await asyncio.sleep(self._backoff.wait_ms(rounds) / 1000)
