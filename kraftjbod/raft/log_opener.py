"""LOOP. ``LogOpener``: opens the metadata log at a start and builds the state machine for it.

The voters are the ones that the log or its snapshot names, else the ones of the configuration. A
static quorum must have the same voters as before (log/static_voters.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.election_ticks import ELECTION_TICKS, HEARTBEAT_TICKS
from kraftjbod.raft.log.damaged_end import may_give_up
from kraftjbod.raft.log.log_store import RaftLogStore, StoredLog
from kraftjbod.raft.log.lone_voter_set import append_lone_voter_set
from kraftjbod.raft.log.noted_voters import NotedVoters
from kraftjbod.raft.log.static_voters import VotersToNote, require_same_voters
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.messages import SnapshotId
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind


class LogOpener:
    """Opens the metadata log at the start of a node, checks its voters, and creates the state
    machine for it. Call :meth:`stop` at the end.
    """

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        clock: Clock,
        key: ReplicaKey,
        voters: VoterSet,
        first_payload_of_term: bytes,
        draw_below: Callable[[int], int],
        retry_interval_ms: int,
        log: Logger,
    ) -> None:
        """Prepare opening.

        :param voters: used if neither the log nor its snapshot names voters.
        :param first_payload_of_term: payload of the entry that a new leader appends first.
        :param draw_below: returns a random number from 0 to below the argument.
        """
        self._log_dir = log_dir
        self._store = store
        self._clock = clock
        self._key = key
        self._voters = voters
        self._first_payload_of_term = first_payload_of_term
        self._draw_below = draw_below
        self._log = log
        self._noted_voters = NotedVoters(
            log_dir=log_dir, retry_interval_ms=retry_interval_ms, log=log
        )

    async def open(self, alone: VoterSet | None) -> StoredLog:
        """Open the log and return its content. Repairs are logged.

        :param alone: the voter set of this node only, if an operator abandons all other voters
            (``append_lone_voter_set``).
        :raises StartupError: the log cannot be read, or belongs to other voters.
        :raises LogDirImpairedError: the disk is full or hangs.
        :raises KafkaStorageError: the metadata directory fails.
        """
        stored, unnoted = await self._log_dir.run_operation(OpKind.LOAD, partial(self._open, alone))
        if unnoted is not None:
            await self._noted_voters.note(unnoted)
        for warning in stored.warnings:
            self._log.warning("metadata_log_repaired", what=warning)
        if stored.hard_state.mute_before_term:
            self._log.warning(
                "metadata_log_is_short", until_term=stored.hard_state.mute_before_term
            )
        return stored

    def machine(self, stored: StoredLog) -> RaftCore:
        found = stored.snapshot
        return RaftCore(
            key=self._key,
            voters=VoterSet.decode(found.voters) if found and found.voters else self._voters,
            hard_state=stored.hard_state,
            first_payload_of_term=self._first_payload_of_term,
            draw_below=self._draw_below,
            snapshot=NOTHING if found is None else SnapshotId(found.last_offset, found.term),
            entries=stored.entries,
            committed_offset=stored.committed_offset,
            terms=stored.terms,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
        )

    async def stop(self) -> None:
        await self._noted_voters.stop()

    def _open(self, alone: VoterSet | None) -> tuple[StoredLog, VotersToNote | None]:
        stored = self._store.open(
            lambda intact: alone is None and may_give_up(self.machine(intact).log.voters, self._key)
        )
        voters = self.machine(stored).log.voters
        unnoted = require_same_voters(
            self._log_dir.vfs,
            self._store.directory,
            voters,
            is_new=stored.snapshot is None and not stored.entries,
            is_fork=alone is not None,
        )
        if alone is not None:
            stored = append_lone_voter_set(
                self._store, stored, voters, alone, self._clock.wall_ms()
            )
        return stored, unnoted
