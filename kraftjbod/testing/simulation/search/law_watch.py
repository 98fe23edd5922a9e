"""WIRE. ``LawWatch``: looks at a simulated cluster all the time, and says what must not be.

What it finds is a sentence; each is said once. At the end of a run ``judge_at_rest`` compares what
lies on the disks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import DEFAULT_MIN_INSYNC_REPLICAS, MIN_INSYNC_REPLICAS
from kraftjbod.metadata.records import decode_entry
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.record_batch import batches
from kraftjbod.protocol.records import read_records
from kraftjbod.raft.machine.messages import EntryKind
from kraftjbod.storage.dir_names import LOG_SUFFIX, ReplicaDirKind, parse_replica_dir
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.cluster_view import ClusterView
from kraftjbod.testing.simulation.search.ledger import Ledger
from kraftjbod.testing.simulation.search.metadata_laws import MetadataLaws

_INTERVAL_S: Final = 0.1
#: After a decision: who joins an in-sync set with too little has caught up soon after.
_CLOSE_INTERVAL_S: Final = 0.003
_CLOSE_LOOKS: Final = 30


class LawWatch:
    """:param found: called with one sentence for everything that must not be."""

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        *,
        found: Callable[[str], None],
        keeps_promise: bool = True,
        is_metadata_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._keeps_promise = keeps_promise
        self._is_metadata_lost = is_metadata_lost
        self._report = found
        self._said: set[str] = set()
        self.metadata = MetadataLaws(min_isr)
        #: Which broker led a partition in an epoch, by the brokers' own word.
        self._leaders: dict[tuple[TopicPartition, int], int] = {}

    async def run(self) -> None:
        """Until cancelled: now and then, and closely for a while after each decision."""
        decided, looks = -1, 0
        while True:
            if (now := self._view.decided_offset()) != decided:
                decided, looks = now, _CLOSE_LOOKS
            if looks % _CLOSE_LOOKS == 0 or looks < 0:
                self.look()
            elif self._keeps_promise:
                self._acknowledged_is_held()
            looks -= 1
            await asyncio.sleep(_CLOSE_INTERVAL_S if looks > 0 else _INTERVAL_S)

    def look(self) -> None:
        self._replay()
        self._one_leader_per_epoch()
        if self._keeps_promise:
            self._acknowledged_is_held()

    def _found(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._report(sentence)

    # --- metadata --------------------------------------------------------------------------------

    def _replay(self) -> None:
        if self._is_metadata_lost():
            self._takes_no_other_metadata()
            return
        laws = self.metadata
        for entry in self._view.entries_from(laws.state.offset + 1):
            records = decode_entry(entry.payload) if entry.kind is EntryKind.DATA else ()
            for finding in laws.take(records, offset=entry.offset, epoch=entry.term):
                self._found(finding, finding)

    def _takes_no_other_metadata(self) -> None:
        """What empty controllers have begun to write: who served by what was lost refuses it."""
        known = {topic.name for topic in self.metadata.state.topics.values()}
        for broker_id in self._view.broker_ids:
            its = self._view.state_of(broker_id)
            if its is None or not self._view.is_serving(broker_id):
                continue
            if missing := known - {topic.name for topic in its.topics.values()}:
                self._found(
                    f"other metadata {broker_id}",
                    f"broker {broker_id} serves by metadata that knows nothing of topics "
                    f"{', '.join(sorted(missing))}, after a majority of it was lost",
                )

    # --- replicas --------------------------------------------------------------------------------

    def _one_leader_per_epoch(self) -> None:
        for broker_id in self._view.broker_ids:
            for replica in self._view.replicas(broker_id):
                partition = replica.partition
                if partition is None or not partition.is_leader:
                    continue
                key = replica.topic_partition, int(partition.leader_epoch)
                first = self._leaders.setdefault(key, broker_id)
                if first != broker_id:
                    sentence = (
                        f"{replica.topic_partition} is led by brokers {first} and {broker_id} in "
                        f"epoch {partition.leader_epoch}"
                    )
                    self._found(sentence, sentence)

    def _acknowledged_is_held(self) -> None:
        """Whoever counts as in sync, and has its log open, holds all that was acknowledged."""
        for tp, registration in self._view.partitions():
            end = self._ledger.acked_end(tp.topic, tp.partition)
            for broker_id in registration.isr if end else ():
                replica = self._view.replica(broker_id, tp)
                if replica is None or replica.handle is None or replica.partition is None:
                    continue
                if replica.partition.leader_epoch != registration.leader_epoch:
                    continue  # It has not heard the latest, and may be told to truncate no more.
                if replica.handle.log_end_offset < end:
                    self._found(
                        f"{tp} {broker_id} {registration.leader_epoch}",
                        f"{tp} was acknowledged up to {end}, and in-sync broker {broker_id} holds "
                        f"{replica.handle.log_end_offset} (leader {registration.leader} in epoch "
                        f"{registration.leader_epoch}, in sync {registration.isr})",
                    )

    # --- at rest ---------------------------------------------------------------------------------

    def judge_replays(self) -> None:
        """All nodes have replayed to the same state."""
        decided = self._view.decided()
        assert decided is not None
        wanted = list(decided.snapshot_records())
        for broker_id in self._view.broker_ids:
            state = self._view.state_of(broker_id)
            if state is None or list(state.snapshot_records()) != wanted:
                sentence = f"broker {broker_id} has replayed to another state than the controller"
                self._found(sentence, sentence)

    def judge_at_rest(self, disks: Mapping[int, Mapping[str, Vfs]]) -> None:
        """What lies on the disks of stopped brokers, by broker and path.

        All copies of a partition are equal, hold what was promised, and lie once in each broker.
        """
        copies: defaultdict[TopicPartition, dict[str, bytes]] = defaultdict(dict)
        for broker_id, by_path in disks.items():
            places: defaultdict[TopicPartition, list[str]] = defaultdict(list)
            for path, vfs in by_path.items():
                for entry in vfs.list_dir(path):
                    named = parse_replica_dir(entry.name) if entry.is_dir else None
                    if named is None or named.topic_partition is None:
                        continue
                    if named.kind in (ReplicaDirKind.CURRENT, ReplicaDirKind.FUTURE):
                        places[named.topic_partition].append(f"{path}/{entry.name}")
            for tp, found in places.items():
                if len(found) > 1:
                    sentence = f"{tp} lies in broker {broker_id} in {', '.join(found)}"
                    self._found(sentence, sentence)
                where = f"broker {broker_id}"
                copies[tp][where] = log_bytes(by_path_of(by_path, found[0]), found[0])
        for tp, found_copies in sorted(copies.items()):
            self._judge_copies(tp, found_copies)

    def _is_compacted(self, topic: str) -> bool:
        overrides = self.metadata.state.topic_overrides(topic)
        return "compact" in overrides.get("cleanup.policy", "")

    def _judge_copies(self, tp: TopicPartition, copies: Mapping[str, bytes]) -> None:
        if self._is_compacted(tp.topic):
            # Each replica is cleaned by itself.
            newest = {where: newest_by_key(data) for where, data in copies.items()}
            first = next(iter(newest.values()))
            for where, one in newest.items():
                if one != first:
                    sentence = f"the copies of {tp} have other values for the same keys: {where}"
                    self._found(sentence, sentence)
        elif len(set(copies.values())) > 1:
            sizes = ", ".join(f"{where}: {len(data)} bytes" for where, data in copies.items())
            sentence = f"the copies of {tp} differ: {sizes}"
            self._found(sentence, sentence)
        if self._keeps_promise:
            for where, data in copies.items():
                findings = self._ledger.judge(tp.topic, tp.partition, records_of(data))
                if findings:
                    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
                    self._found(f"{where}: {findings[0]}", f"{where}: {findings[0]}{more}")


def newest_by_key(data: bytes) -> dict[bytes, bytes]:
    """What a log's records come to, by their keys; what transactions wrote is left out."""
    found: dict[bytes, bytes] = {}
    for position, header in batches(data):
        if header.is_control or header.is_transactional:
            continue
        for record in read_records(data, position):
            if record.value is None:
                found.pop(record.key or b"", None)
            else:
                found[record.key or b""] = record.value
    return found


def by_path_of(by_path: Mapping[str, Vfs], path: str) -> Vfs:
    return by_path[path.rpartition("/")[0]]


def log_bytes(vfs: Vfs, directory: str) -> bytes:
    """All segments of a replica, one after the other: equal however they are cut into segments."""
    names = sorted(entry.name for entry in vfs.list_dir(directory))
    wanted = [name for name in names if name.endswith(LOG_SUFFIX)]
    return b"".join(vfs.read_if_exists(f"{directory}/{name}") or b"" for name in wanted)


def records_of(data: bytes) -> dict[int, bytes]:
    """The values of a log's records, by offset and in order."""
    found: dict[int, bytes] = {}
    for position, header in batches(data):
        if not header.is_control:
            for record in read_records(data, position):
                found[record.offset] = record.value or b""
    return found


def min_isr(state: MetadataState, topic: str) -> int:
    """``min.insync.replicas`` of a topic, as the metadata says it."""
    configured = state.topic_overrides(topic).get(MIN_INSYNC_REPLICAS)
    return DEFAULT_MIN_INSYNC_REPLICAS if configured is None else int(configured)
