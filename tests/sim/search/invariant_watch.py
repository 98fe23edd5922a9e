"""``InvariantWatch``: checks the invariants of a simulated cluster continuously.

A violation is a sentence, and each is reported once. At the end of a run ``judge_at_rest``
compares the replicas on the disks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from kraftjbod.core.ids import TopicId, TopicIdPartition, TopicPartition
from kraftjbod.core.topic_config import DEFAULT_MIN_INSYNC_REPLICAS, MIN_INSYNC_REPLICAS
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.metadata.registrations import TopicRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.record_batch import batches
from kraftjbod.protocol.records import read_records
from kraftjbod.raft.machine.messages import EntryKind
from kraftjbod.storage.checkpoints import (
    CorruptCheckpointError,
    parse_offsets,
    parse_partition_metadata,
)
from kraftjbod.storage.dir_names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_MARK,
    ReplicaDirKind,
    parse_offset_file,
    parse_replica_dir,
)
from kraftjbod.storage.replicas.stray_mark import parse_stray_mark
from kraftjbod.storage.vfs import Vfs
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.ledgers.ledger import Ledger, Reign
from tests.sim.search.ledgers.topic_ledger import TopicLedger
from tests.sim.search.metadata_invariants import MetadataInvariants
from tests.sim.search.session_invariants import SessionInvariants

_INTERVAL_S: Final = 0.1
#: Short, because a replica that joined an in-sync set too early soon catches up.
_CLOSE_INTERVAL_S: Final = 0.003
_CLOSE_LOOKS: Final = 30
_CHECKPOINTS: Final = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


class Copy(NamedTuple):
    """The segments of one replica, concatenated, and its log start offset."""

    data: bytes
    start: int


class InvariantWatch:
    """:param found: called with one sentence for each violation."""

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        *,
        found: Callable[[str], None],
        keeps_promise: bool = True,
        is_metadata_lost: Callable[[], bool] = lambda: False,
        topics: TopicLedger | None = None,
        loose: Callable[[], set[str]] = set,
    ) -> None:
        """:param loose: names of topics for which an unclean leader may be elected."""
        self._view = view
        self._ledger = ledger
        self._topics = topics or TopicLedger()
        self._keeps_promise = keeps_promise
        self._is_metadata_lost = is_metadata_lost
        self._report = found
        self._said: set[str] = set()
        self.metadata = MetadataInvariants(min_isr, loose=loose)
        self._sessions = SessionInvariants(view, found=found)
        #: The topics that each broker knew at the last check.
        self._replayed_topics: dict[int, frozenset[TopicId]] = {}
        #: By topic and partition: leader epoch, leader, and the time of its first appearance.
        self._reigns: dict[tuple[str, int], tuple[int, Reign]] = {}
        #: Leader by partition and epoch, as brokers report it.
        self._leaders: dict[tuple[TopicIdPartition, int], int] = {}

    async def run(self) -> None:
        """Check until cancelled: at intervals, and more often for a while after each decision."""
        decided, looks = -1, 0
        while True:
            if (now := self._view.decided_offset()) != decided:
                decided, looks = now, _CLOSE_LOOKS
            if looks % _CLOSE_LOOKS == 0 or looks < 0:
                self.look()
            else:
                self._look_closely()
            looks -= 1
            await asyncio.sleep(_CLOSE_INTERVAL_S if looks > 0 else _INTERVAL_S)

    def look(self) -> None:
        self._replay()
        self._one_leader_per_epoch()
        self._look_closely()
        if self._keeps_promise:
            self._deleted_stays_so()
            self._check_known_topics()

    def _look_closely(self) -> None:
        """Check the invariants that hold right after a decision."""
        if not self._is_metadata_lost():
            self._sessions.look()
        if self._keeps_promise:
            self._committed_is_held()

    def _found(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._report(sentence)

    # --- metadata --------------------------------------------------------------------------------

    def _replay(self) -> None:
        if self._is_metadata_lost():
            self._takes_no_other_metadata()
            return
        invariants = self.metadata
        for entry in self._view.entries_from(invariants.state.offset + 1):
            records = decode_entry(entry.payload) if entry.kind is EntryKind.DATA else ()
            for finding in invariants.take(records, offset=entry.offset, epoch=entry.term):
                self._found(finding, finding)
        later = self._view.state_after(invariants.state.offset)
        for finding in () if later is None else invariants.continue_from(later):
            self._found(finding, finding)
        self._note_reigns(invariants.state)
        for broker_id in self._view.broker_ids:
            if (its := self._view.state_of(broker_id)) is not None:
                self._replayed_topics[broker_id] = frozenset(its.topics)

    def _note_reigns(self, state: MetadataState) -> None:
        for name, partition in self._ledger.loose:
            if (topic := state.topic(name)) is None or partition >= len(topic.partitions):
                continue
            one = topic.partitions[partition]
            if self._reigns.get((name, partition), (-1, None))[0] != one.leader_epoch:
                reign = Reign(leader=one.leader, since_ms=self._view.now_ms)
                self._reigns[name, partition] = one.leader_epoch, reign

    def _takes_no_other_metadata(self) -> None:
        """Invariant: a broker refuses the metadata of empty controllers that replaced lost ones."""
        topics = self.metadata.state.topics.items()
        lasting = {one: topic for one, topic in topics if not self._topics.may_be_gone(one)}
        for broker_id in self._view.broker_ids:
            its = self._view.state_of(broker_id)
            if its is None or not self._view.is_serving(broker_id):
                continue
            # It may not have replayed the latest decisions.
            known_ids = self._replayed_topics.get(broker_id, frozenset())
            known = {topic.name for one, topic in lasting.items() if one in known_ids}
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
                key = replica.key, int(partition.leader_epoch)
                first = self._leaders.setdefault(key, broker_id)
                if first != broker_id:
                    sentence = (
                        f"{replica.topic_partition} is led by brokers {first} and {broker_id} in "
                        f"epoch {partition.leader_epoch}"
                    )
                    self._found(sentence, sentence)

    def _committed_is_held(self) -> None:
        """Invariant: in-sync replicas with an open log hold all committed records."""
        for tp, registration, topic_id in self._view.partitions(self._ledger.topics):
            key = self._ledger.key_of(tp.topic, topic_id)
            end = self._ledger.committed_end(key, tp.partition)
            for broker_id in registration.isr if end else ():
                replica = self._view.replica(broker_id, tp)
                if replica is None or replica.handle is None or replica.partition is None:
                    continue
                if replica.topic_id != topic_id:
                    continue  # It does not know the newer topic of that name yet.
                if replica.partition.leader_epoch != registration.leader_epoch:
                    continue  # Its metadata is old: it is checked once it knows this epoch.
                if replica.handle.log_end_offset < end:
                    self._found(
                        f"{tp} {broker_id} {registration.leader_epoch}",
                        f"{tp} is committed up to {end}, and in-sync broker {broker_id} holds "
                        f"{replica.handle.log_end_offset} (leader {registration.leader} in epoch "
                        f"{registration.leader_epoch}, in sync {registration.isr})",
                    )

    def _deleted_stays_so(self) -> None:
        """Invariant: a leader's log start offset is as acknowledged, and not beyond requests."""
        for tp, registration, topic_id in self._view.partitions(self._ledger.topics):
            replica = (
                self._view.replica(registration.leader, tp) if registration.leader > 0 else None
            )
            if replica is None or replica.handle is None or replica.partition is None:
                continue
            epoch = replica.partition.leader_epoch
            if replica.topic_id != topic_id or epoch != registration.leader_epoch:
                continue
            key, start = self._ledger.key_of(tp.topic, topic_id), replica.handle.log_start_offset
            if wrong := self._ledger.wrong_start(key, tp.partition, start):
                sentence = f"{wrong} (leader {registration.leader} in epoch {epoch})"
                self._found(f"start {key} {tp.partition} {epoch}", sentence)

    def _check_known_topics(self) -> None:
        state = self._view.decided()
        if state is not None:
            counts = {topic_id: len(one.partitions) for topic_id, one in state.topics.items()}
            for finding in self._topics.judge(counts):
                self._found(finding, finding)

    # --- at rest ---------------------------------------------------------------------------------

    def judge_replays(self) -> None:
        """Check that all nodes have the same metadata, and logs their topic's configuration."""
        for finding in self._view.misconfigured():
            self._found(finding, finding)
        decided = self._view.decided()
        assert decided is not None
        wanted = list(decided.snapshot_records())
        for broker_id in self._view.broker_ids:
            state = self._view.state_of(broker_id)
            if state is None or list(state.snapshot_records()) != wanted:
                sentence = f"broker {broker_id} has replayed to another state than the controller"
                self._found(sentence, sentence)

    def left_over(
        self,
        disks: Mapping[int, Mapping[str, Vfs]],
        wall_ms: Callable[[int], int],
    ) -> list[str]:
        """Return remains of deleted topics on disks, by broker and path; one sentence each.

        :param wall_ms: the time by a broker's clock. A directory that was set aside at a later time
            than that stays, since the clock may have jumped.
        """
        known = {topic_id: topic.name for topic_id, topic in self._known_topics().items()}
        return [
            f"{path}/{entry.name} of broker {broker_id} is of a topic that is gone"
            for broker_id, by_path in disks.items()
            for path, vfs in by_path.items()
            for entry in vfs.list_dir(path)
            if entry.is_dir
            and _is_of_another(vfs, path, entry.name, known)
            and not _is_set_aside_after(wall_ms(broker_id), vfs, f"{path}/{entry.name}")
        ]

    def _known_topics(self) -> Mapping[TopicId, TopicRegistration]:
        state = self._view.decided() or self.metadata.state
        return state.topics

    def judge_at_rest(self, disks: Mapping[int, Mapping[str, Vfs]]) -> None:
        """Check the disks of stopped brokers, given by broker and path.

        All replicas of a partition are equal, hold the acknowledged records, and exist once per
        broker. Deleted topics leave no files.
        """
        copies: defaultdict[TopicPartition, dict[str, Copy]] = defaultdict(dict)
        for broker_id, by_path in disks.items():
            places: defaultdict[TopicPartition, list[str]] = defaultdict(list)
            for path, vfs in by_path.items():
                here: set[TopicPartition] = set()
                for entry in vfs.list_dir(path):
                    named = parse_replica_dir(entry.name) if entry.is_dir else None
                    if named is None or named.topic_partition is None:
                        continue
                    if named.kind in (ReplicaDirKind.CURRENT, ReplicaDirKind.FUTURE):
                        places[named.topic_partition].append(f"{path}/{entry.name}")
                        here.add(named.topic_partition)
                self._judge_checkpoints(broker_id, path, vfs, here)
            for tp, found in places.items():
                if len(found) > 1:
                    sentence = f"{tp} lies in broker {broker_id} in {', '.join(found)}"
                    self._found(sentence, sentence)
                where = f"broker {broker_id}"
                copies[tp][where] = copy_in(by_path_of(by_path, found[0]), found[0], tp)
        for tp, found_copies in sorted(copies.items()):
            self._judge_copies(tp, found_copies)

    def _judge_checkpoints(
        self, broker_id: int, path: str, vfs: Vfs, here: Collection[TopicPartition]
    ) -> None:
        known = {topic.name for topic in self.metadata.state.topics.values()}
        for name in _CHECKPOINTS:
            for tp in sorted(_offsets_in(vfs, f"{path}/{name}")):
                if tp not in here and tp.topic not in known:
                    sentence = f"{path}/{name} of broker {broker_id} speaks of {tp}, which is gone"
                    self._found(sentence, sentence)

    def _is_compacted(self, topic: str) -> bool:
        overrides = self.metadata.state.topic_overrides(topic)
        return "compact" in overrides.get("cleanup.policy", "")

    def _judge_copies(self, tp: TopicPartition, copies: Mapping[str, Copy]) -> None:
        topic = self.metadata.state.topic(tp.topic)
        key = self._ledger.key_of(tp.topic, None if topic is None else topic.topic_id)
        if self._is_compacted(tp.topic):
            # Each replica compacts its own log. A coordinator may write while the brokers stop: a
            # timer ends a member, and the followers have stopped already.
            end = min(_end_of(one.data) for one in copies.values())
            newest = {where: newest_by_key(one.data, end) for where, one in copies.items()}
            first = next(iter(newest.values()))
            for where, one in newest.items():
                if one != first:
                    sentence = f"the copies of {tp} have other values for the same keys: {where}"
                    self._found(sentence, sentence)
        else:
            self._judge_equal(tp, key, copies)
        _, reign = self._reigns.get((tp.topic, tp.partition), (-1, None))
        if self._keeps_promise:
            for where, copy in copies.items():
                log = {
                    offset: value
                    for offset, value in records_of(copy.data).items()
                    if offset >= copy.start
                }
                findings = self._ledger.judge(key, tp.partition, log, copy.start, reign)
                if findings:
                    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
                    self._found(f"{where}: {findings[0]}", f"{where}: {findings[0]}{more}")

    def _judge_equal(self, tp: TopicPartition, key: str, copies: Mapping[str, Copy]) -> None:
        """Check that replicas are equal from the latest log start offset on.

        With retention each replica may start anywhere, as long as enough is left. The same holds
        after an unanswered DeleteRecords request, which a former leader may have applied.
        """
        starts = {where: one.start for where, one in copies.items()}
        retained = self._ledger.retained_bytes.get(key)
        is_open = retained is not None or (key, tp.partition) in self._ledger.open_starts
        if not is_open and len(set(starts.values())) > 1:
            sentence = f"the copies of {tp} start at different offsets: {starts}"
            self._found(sentence, sentence)
        for where, one in copies.items():
            if retained is not None and one.start > 0 and len(one.data) < retained:
                self._found(
                    f"retained {where} {tp}",
                    f"retention left {len(one.data)} bytes of {tp} in {where}, not {retained}",
                )
        begin = max(starts.values())
        same = {where: bytes_from(one.data, begin) for where, one in copies.items()}
        if len(set(same.values())) > 1:
            sizes = ", ".join(f"{where}: {len(data)} bytes" for where, data in same.items())
            sentence = f"the copies of {tp} differ: {sizes}"
            self._found(sentence, sentence)


def _is_of_another(vfs: Vfs, path: str, name: str, known: Mapping[TopicId, str]) -> bool:
    """Return whether a directory is a replica's, of a topic that is not ``known``."""
    named = parse_replica_dir(name)
    if named is None:
        return False
    data = vfs.read_if_exists(f"{path}/{name}/{PARTITION_METADATA}")
    if data is not None:
        try:
            return parse_partition_metadata(data.decode(), path) not in known
        except CorruptCheckpointError:
            # Rot made the id unreadable. A stray of an unknown topic is kept for the operator.
            if named.kind is ReplicaDirKind.STRAY:
                return False
    return named.topic_partition is None or named.topic_partition.topic not in known.values()


def _is_set_aside_after(wall_ms: int, vfs: Vfs, directory: str) -> bool:
    data = vfs.read_if_exists(f"{directory}/{STRAY_MARK}")
    mark = None if data is None else parse_stray_mark(data.decode())
    return mark is not None and mark.set_aside_ms > wall_ms


def _offsets_in(vfs: Vfs, path: str) -> dict[TopicPartition, int]:
    data = vfs.read_if_exists(path)
    # A checkpoint that rotted is unreadable until its owner writes it the next time.
    with suppress(CorruptCheckpointError):
        return {} if data is None else parse_offsets(data.decode(), path)
    return {}


def _end_of(data: bytes) -> int:
    """Return the offset after the last batch; 0 without a batch. Compaction keeps that batch."""
    return max((header.last_offset + 1 for _, header in batches(data)), default=0)


def newest_by_key(data: bytes, end: int) -> dict[bytes, bytes]:
    """Return the newest value of each key before the offset ``end``, transactions left out."""
    found: dict[bytes, bytes] = {}
    for position, header in batches(data):
        if header.is_control or header.is_transactional or header.base_offset >= end:
            continue
        for record in read_records(data, position):
            if record.value is None:
                found.pop(record.key or b"", None)
            else:
                found[record.key or b""] = record.value
    return found


def by_path_of(by_path: Mapping[str, Vfs], path: str) -> Vfs:
    return by_path[path.rpartition("/")[0]]


def copy_in(vfs: Vfs, directory: str, tp: TopicPartition) -> Copy:
    """Return the concatenated segments of a replica, which do not depend on segment boundaries."""
    names = sorted(entry.name for entry in vfs.list_dir(directory))
    found = [(name, parse_offset_file(name)) for name in names if name.endswith(LOG_SUFFIX)]
    segments = [(name, parsed[0]) for name, parsed in found if parsed is not None]
    data = b"".join(vfs.read_if_exists(f"{directory}/{name}") or b"" for name, _ in segments)
    path = f"{directory.rpartition('/')[0]}/{LOG_START_CHECKPOINT}"
    first = segments[0][1] if segments else 0
    return Copy(data, max(first, _offsets_in(vfs, path).get(tp, 0)))


def bytes_from(data: bytes, offset: int) -> bytes:
    """Return the bytes from the batch that contains ``offset`` on."""
    for position, header in batches(data):
        if header.next_offset > offset:
            return data[position:]
    return b""


def records_of(data: bytes) -> dict[int, bytes]:
    """Return the values of a log's records by offset, in order."""
    found: dict[int, bytes] = {}
    for position, header in batches(data):
        if not header.is_control:
            for record in read_records(data, position):
                found[record.offset] = record.value or b""
    return found


def min_isr(state: MetadataState, topic: str) -> int:
    """Return ``min.insync.replicas`` of a topic according to the metadata."""
    configured = state.topic_overrides(topic).get(MIN_INSYNC_REPLICAS)
    return DEFAULT_MIN_INSYNC_REPLICAS if configured is None else int(configured)
