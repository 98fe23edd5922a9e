"""PURE. ``ClusterControlManager``: registered brokers, and which of their directories are online.

* A broker registers as fenced, with the ids of its directories. An id belongs to one broker.
* An incarnation keeps every directory that it registered *known*, online or not. So it may repeat
  the cumulative list of failed ones, but naming any other directory is an error (KIP-858).
* A broker with several directories stays fenced while the directory of any of its replicas is
  unknown (KIP-858, "Broker registration"). It is unfenced if all its directories are full, stalled
  or cordoned.
* The same incarnation may register again, with directories that returned or are new, and without
  those that it releases permanently.
* A saturated or stalled directory (KIP-928) stays registered and online. Each heartbeat lists
  these.
* Values that the present level of ``metadata.version`` does not support are ignored.

replication_control.py decides what follows for partitions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

from kraftjbod.controller.brokers.dynamic_cordons import dynamic_cordons
from kraftjbod.controller.brokers.heartbeat_manager import (
    BrokerControlState,
    BrokerHeartbeatManager,
    HeartbeatRequests,
    next_state,
)
from kraftjbod.controller.partitions.acceptance import Acceptance, AcceptanceOf, acceptance_of
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.replica_placer import UsableBroker
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
)
from kraftjbod.core.metadata_version import METADATA_VERSION
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureRange,
    ImpairedLogDir,
    Listener,
    RegisterBrokerRecord,
)
from kraftjbod.metadata.registrations import BrokerRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import BrokerHeartbeatRequest, BrokerRegistrationRequest


class ClusterControlManager:
    """Decides registrations and heartbeats of brokers, and tells which brokers may receive
    replicas. Returns records; the replay of the records changes the metadata.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        state: MetadataState,
        index: ReplicaIndex,
        heartbeats: BrokerHeartbeatManager,
        election_timeout_ms: int,
    ) -> None:
        self._cluster_id = cluster_id
        self._state = state
        self._index = index
        self._heartbeats = heartbeats
        self._election_timeout_ms = election_timeout_ms
        #: The limit in each broker's last heartbeat. Not replicated: a new controller learns it
        #: from the next heartbeats.
        self._max_replicas: dict[BrokerId, int] = {}

    # --- reading ---------------------------------------------------------------------------------

    def require_epoch(self, broker_id: BrokerId, epoch: BrokerEpoch) -> BrokerRegistration:
        """Return the broker's registration, which must have this epoch.

        :raises OperatingError: BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH.
        """
        broker = self._state.brokers.get(broker_id)
        if broker is None:
            raise OperatingError(
                f"Broker {broker_id} is not registered.", code=ErrorCode.BROKER_ID_NOT_REGISTERED
            )
        if broker.epoch != epoch:
            raise OperatingError(
                f"Broker {broker_id} has epoch {broker.epoch}, not {epoch}.",
                code=ErrorCode.STALE_BROKER_EPOCH,
            )
        return broker

    def is_active(self, broker_id: BrokerId) -> bool:
        broker = self._state.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def acceptance(self, broker_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
        """Return whether a replica in this directory of the broker may lead and be in sync."""
        return acceptance_of(self._state.brokers.get(broker_id), directory_id)

    def acceptance_with(self, after: BrokerRegistration) -> AcceptanceOf:
        """Return a function that answers as :meth:`acceptance` once ``after`` is a broker's
        registration."""

        def acceptance(broker_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
            if broker_id != after.broker_id:
                return self.acceptance(broker_id, directory_id)
            return acceptance_of(after, directory_id)

        return acceptance

    def default_dir(self, broker_id: BrokerId) -> DirectoryId:
        """Return the directory for a new replica: the only one of the broker that may take it.

        UNASSIGNED_DIR if there are several or none, or the broker is unknown: the broker chooses,
        because it knows the free space. MIGRATING_DIR if the metadata, or the registration of the
        broker, has no directories.
        """
        broker = self._state.brokers.get(broker_id)
        if not self._state.metadata_version.has_directories:
            return MIGRATING_DIR
        if broker is None:
            return UNASSIGNED_DIR
        if not broker.known_log_dirs:
            return MIGRATING_DIR
        eligible = broker.dirs_for_new_replicas
        return eligible[0] if len(eligible) == 1 else UNASSIGNED_DIR

    def usable_brokers(self) -> list[UsableBroker]:
        """Return the brokers that may receive new replicas, sorted by id."""
        return [
            UsableBroker(broker_id=broker_id, rack=broker.rack, fenced=broker.fenced)
            for broker_id, broker in sorted(self._state.brokers.items())
            if not broker.in_controlled_shutdown and broker.takes_new_replicas
        ]

    def brokers_by_use(self) -> str:
        """Return a sentence for operators: how many brokers there are, and why some take no
        replicas."""
        brokers = self._state.brokers.values()
        full = sum(not b.takes_new_replicas and bool(b.dirs_closed_by_impairment) for b in brokers)
        closed = sum(not b.takes_new_replicas for b in brokers) - full
        return (
            f"Brokers: {len(brokers)} registered, {sum(b.fenced for b in brokers)} fenced, "
            f"{sum(b.in_controlled_shutdown for b in brokers)} shutting down, "
            f"{closed} with all directories cordoned or offline, "
            f"{full} with all others full or stalled."
        )

    def why_too_many(self, broker_id: BrokerId, added: int) -> str | None:
        """Return a message why the broker cannot hold ``added`` more replicas; None if it can."""
        most = self._max_replicas.get(broker_id, -1)
        present = self._index.replica_count(broker_id)
        if most < 0 or present + added <= most:
            return None
        return (
            f"Broker {broker_id} can hold {most} replicas with the files that it may have open; "
            f"it has {present} and would get {added} more. Raise its limit of open files "
            "(RLIMIT_NOFILE: ulimit -n, LimitNOFILE of a systemd unit) and restart it, or ask for "
            "fewer partitions."
        )

    def active_brokers(self) -> Iterator[BrokerId]:
        return (b for b, broker in self._state.brokers.items() if broker.is_active)

    def unfenced_brokers(self) -> Iterator[BrokerId]:
        return (b for b, broker in self._state.brokers.items() if not broker.fenced)

    # --- registration ----------------------------------------------------------------------------

    def register(
        self, request: BrokerRegistrationRequest, *, now_ms: int, next_offset: int
    ) -> RegisterBrokerRecord:
        """Return the registration record of a new incarnation, or of the same one that registers
        again.

        :param now_ms: monotonic time.
        :param next_offset: offset of the entry that will have the record. It becomes the epoch of a
            new incarnation; the same one keeps its epoch.
        :raises OperatingError: the registration is refused; the message says why.
        """
        self._require_same_cluster(request)
        broker = self._state.brokers.get(request.broker_id)
        same = broker is not None and broker.incarnation_id == request.incarnation_id
        if not same and not self._heartbeats.may_be_replaced(request.broker_id, now_ms):
            raise OperatingError(
                f"Another incarnation of broker {request.broker_id} is alive, or was less than "
                "the session timeout ago.",
                code=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            )
        if self._state.metadata_version.has_directories:
            self._require_own_dirs(request)
        self._require_features(request)
        wanted = _registered(request, broker if same else None, next_offset)
        if broker is not None and not same:
            wanted = dataclasses.replace(wanted, previous_epoch=broker.epoch)
        configured = dynamic_cordons(self._state.configs, wanted)
        if configured is not None:
            wanted = dataclasses.replace(wanted, cordoned_log_dirs=configured)
        return wanted.at_level(self._state.metadata_version).to_record()

    def _require_same_cluster(self, request: BrokerRegistrationRequest) -> None:
        if request.cluster_id != self._cluster_id:
            raise OperatingError(
                f"Expected cluster id {self._cluster_id}, but broker {request.broker_id} "
                f"has {request.cluster_id}.",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )

    def _require_own_dirs(self, request: BrokerRegistrationRequest) -> None:
        if not request.log_dirs:
            raise _invalid("No directories specified in request.")
        for directory, count in Counter(request.log_dirs).items():
            if directory.is_reserved:
                raise _invalid(f"Directory id {directory} is reserved.")
            if count > 1:
                raise _invalid(f"Directory id {directory} is named {count} times.")
        wanted = set(request.log_dirs)
        for directory in request.forgotten_log_dirs:
            if directory.is_reserved:
                raise _invalid(f"Directory id {directory} is reserved.")
            if directory in wanted:
                raise _invalid(f"Directory {directory} is both registered and forgotten.")
        _require_parallel(request)
        if not wanted.issuperset(request.cordoned_log_dirs):
            raise _invalid("A directory is cordoned that is not among the registered ones.")
        for other_id, other in self._state.brokers.items():
            foreign = wanted & other.known_log_dirs
            if other_id != request.broker_id and foreign:
                raise _invalid(
                    f"Broker {other_id} is already registered with directory {min(foreign)}."
                )

    def _require_features(self, request: BrokerRegistrationRequest) -> None:
        """Require that the broker supports the cluster's level of each feature.

        A request without a range for ``metadata.version`` supports the present level.

        :raises OperatingError: UNSUPPORTED_VERSION.
        """
        for name, level in self._state.features.items():
            unsaid = level if name == METADATA_VERSION else 0
            lowest, highest = request.features.get(name, (unsaid, unsaid))
            if not lowest <= level <= highest:
                raise OperatingError(
                    f"Broker {request.broker_id} supports {name} {lowest} to {highest}, "
                    f"but the cluster is at {level}.",
                    code=ErrorCode.UNSUPPORTED_VERSION,
                )

    # --- heartbeat -------------------------------------------------------------------------------

    @property
    def announced_session_ms(self) -> int:
        """Length in milliseconds of a session, from each request on, that is announced to brokers.
        The next active controller grants at least this length to brokers of this controller.
        """
        limit_ms = self._state.session_limit_ms - self._election_timeout_ms
        return max(1, min(self._heartbeats.session_timeout_ms, limit_ms))

    def heartbeat(
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest
    ) -> tuple[BrokerControlState, BrokerRegistrationChangeRecord | None]:
        """Return the broker's state after the heartbeat, and the record of its change if it
        changes.

        :raises OperatingError: LOG_DIR_NOT_FOUND, naming a directory that is not this broker's.
        """
        online = _still_online(broker, request.offline_log_dirs)
        self._max_replicas[broker.broker_id] = request.max_replicas
        cordoned = self._cordoned(broker, request)
        impaired = self._impaired(broker, request, online)
        lost_all = bool(broker.known_log_dirs) and not online
        requests = HeartbeatRequests(
            want_fence=request.want_fence or lost_all,
            want_shut_down=request.want_shut_down,
            may_unfence=self._may_unfence(broker, online, cordoned, impaired, request),
            leads_something=self._index.led_count(broker.broker_id) > 0,
            shutdown_is_known=self._heartbeats.is_shutdown_known(
                broker.broker_id, self.active_brokers()
            ),
        )
        current = BrokerControlState.of_broker(broker)
        state = next_state(current, requests)
        shutting_down = state is BrokerControlState.CONTROLLED_SHUTDOWN
        enters_shutdown = shutting_down and not broker.in_controlled_shutdown
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            fenced=None if state.is_fenced == broker.fenced else state.is_fenced,
            in_controlled_shutdown=True if enters_shutdown else None,
            log_dirs=None if online == broker.log_dirs else online,
            cordoned_log_dirs=None if cordoned == broker.cordoned_log_dirs else cordoned,
            impaired_log_dirs=impaired,
        )
        return state, None if broker.merge(change) == broker else change

    def _cordoned(
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest
    ) -> tuple[DirectoryId, ...]:
        level, said = self._state.metadata_version, request.cordoned_log_dirs
        if said is None or not level.has_cordoning or not broker.known_log_dirs:
            return broker.cordoned_log_dirs
        _require_known(broker, said)
        configured = dynamic_cordons(self._state.configs, broker)
        return tuple(sorted(said)) if configured is None else configured

    def _impaired(
        self,
        broker: BrokerRegistration,
        request: BrokerHeartbeatRequest,
        online: tuple[DirectoryId, ...],
    ) -> tuple[ImpairedLogDir, ...] | None:
        """Return the broker's impaired directories if they change with the heartbeat, else None.

        Offline directories are left out.
        """
        level, said = self._state.metadata_version, request.impaired_log_dirs
        if said is None or not level.has_cordoning or not broker.known_log_dirs:
            return None
        states = {one.directory_id: one.state for one in said}
        _require_known(broker, states)
        impaired = tuple(
            ImpairedLogDir(directory_id, states[directory_id])
            for directory_id in online
            if directory_id in states
        )
        return None if impaired == broker.impaired_log_dirs else impaired

    def fence(self, broker: BrokerRegistration) -> BrokerRegistrationChangeRecord:
        """Return the record that fences a broker whose session ended."""
        return BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=True
        )

    def _may_unfence(
        self,
        broker: BrokerRegistration,
        online: tuple[DirectoryId, ...],
        cordoned: tuple[DirectoryId, ...],
        impaired: tuple[ImpairedLogDir, ...] | None,
        request: BrokerHeartbeatRequest,
    ) -> bool:
        """Return whether the broker may be unfenced.

        A broker may be unfenced if it has replayed its registration and knows the directory of each
        of its replicas, unless no directory can take new replicas.

        :param impaired: its impaired directories if they changed with this heartbeat, else None.
        """
        if request.current_metadata_offset < broker.epoch:
            return False
        if len(broker.known_log_dirs) <= 1 or not self._index.has_unresolved(broker.broker_id):
            return True
        # No directory can take the replicas without one. The broker's other replicas are needed.
        said = broker.impaired_log_dirs if impaired is None else impaired
        return {*cordoned, *(one.directory_id for one in said)}.issuperset(online)


def _require_parallel(request: BrokerRegistrationRequest) -> None:
    """Require that each optional list of the request is empty or has one item per directory.

    :raises OperatingError: INVALID_REQUEST.
    """
    parallel = (
        ("paths", request.log_dir_paths),
        ("clean shutdown epochs", request.clean_shutdown_epochs),
        ("clean shutdown incarnations", request.clean_shutdown_incarnations),
    )
    for what, said in parallel:
        if said and len(said) != len(request.log_dirs):
            raise _invalid(f"{len(said)} {what} for {len(request.log_dirs)} directories.")


def _registered(
    request: BrokerRegistrationRequest, kept: BrokerRegistration | None, next_offset: int
) -> BrokerRegistration:
    """Return the registration that results from the request.

    The same incarnation keeps its epoch and its state. A directory that it leaves out becomes
    offline, unless it is forgotten.

    :param kept: the present registration of the same incarnation, or None.
    """
    online = frozenset(request.log_dirs)
    paths = dict(zip(request.log_dirs, request.log_dir_paths, strict=False))
    fresh = BrokerRegistration(
        broker_id=request.broker_id,
        epoch=BrokerEpoch(next_offset),
        incarnation_id=request.incarnation_id,
        listeners=tuple(
            Listener(name=listener.name, host=listener.host, port=listener.port)
            for listener in request.listeners
        ),
        rack=request.rack,
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=tuple(sorted(online)),
        log_dir_paths=paths,
        cordoned_log_dirs=tuple(sorted(request.cordoned_log_dirs)),
        features=tuple(FeatureRange(n, *span) for n, span in sorted(request.features.items())),
    )
    if kept is None:
        return fresh
    forgotten = frozenset(request.forgotten_log_dirs)
    known = {d: path for d, path in kept.log_dir_paths.items() if d not in forgotten}
    return dataclasses.replace(
        fresh,
        epoch=kept.epoch,
        previous_epoch=kept.previous_epoch,
        fenced=kept.fenced,
        in_controlled_shutdown=kept.in_controlled_shutdown,
        offline_log_dirs=tuple(sorted(kept.known_log_dirs - online - forgotten)),
        log_dir_paths=known | paths,
        impaired_log_dirs=tuple(d for d in kept.impaired_log_dirs if d.directory_id in online),
    )


def _still_online(
    broker: BrokerRegistration, offline: Iterable[DirectoryId]
) -> tuple[DirectoryId, ...]:
    if not broker.known_log_dirs:
        # It registered before the metadata contained directories.
        return ()
    reported = set(offline)
    _require_known(broker, reported)
    return tuple(directory for directory in broker.log_dirs if directory not in reported)


def _require_known(broker: BrokerRegistration, named: Iterable[DirectoryId]) -> None:
    unknown = set(named) - broker.known_log_dirs
    if unknown:
        raise OperatingError(
            f"Directory {min(unknown)} was not registered by broker {broker.broker_id}.",
            code=ErrorCode.LOG_DIR_NOT_FOUND,
        )


def _invalid(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REQUEST)
