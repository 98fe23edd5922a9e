"""LOOP. ``ControllerEvents``: logs events and counts metrics of the controller's decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.core.errors import ErrorCode, ForeignMetadataError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from kraftjbod.protocol.rpc_messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionIsr,
    RpcResponse,
)

_FOREIGN_METADATA_INTERVAL_MS: Final = 30_000
_INELIGIBLE_INTERVAL_MS: Final = 30_000


class ControllerEvents:
    """Logs the decisions of one controller, counts them and the state of the cluster in its
    metrics, and reports each fenced broker. Use it in the event loop's thread only.
    """

    def __init__(
        self,
        *,
        managers: Callable[[], ControlManagers],
        clock: Clock,
        metrics: Metrics,
        fenced: Callable[[BrokerId], None],
    ) -> None:
        """:param managers: returns the present control managers, which may be replaced.
        :param fenced: called with each broker that is fenced.
        """
        self._managers = managers
        self._clock = clock
        self._metrics = metrics
        metrics.count("LeaderChangeCount", 0)
        metrics.count("UncleanLeaderElectionCount", 0)
        self._fenced = fenced
        self._log = get_logger(component="controller")
        #: Earliest time at which a broker that knows another metadata log is logged again.
        self._foreign_metadata_due_ms = 0
        #: Per registered broker: earliest time at which it is logged as ineligible again.
        self._ineligible_due_ms: dict[BrokerId, int] = {}

    def note_foreign_metadata(self, error: ForeignMetadataError) -> None:
        """Log the error, at most once per 30 s: brokers repeat their requests."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._foreign_metadata_due_ms:
            self._foreign_metadata_due_ms = now_ms + _FOREIGN_METADATA_INTERVAL_MS
            self._log.error("broker_knows_other_metadata", reason=error.message)

    def note_ineligible(self, request: AlterPartitionRequest, response: RpcResponse) -> None:
        """Log the refused members of ISR changes with the reasons, each at most once per 30 s.

        A leader repeats its request for as long as the member fetches from it.
        """
        assert isinstance(response, AlterPartitionResponse), response
        now_ms, by_member = self._clock.now_ms(), dict[BrokerId, tuple[PartitionIsr, str]]()
        for requested, answer in zip(request.partitions, response.partitions, strict=True):
            if answer.error_code is ErrorCode.INELIGIBLE_REPLICA:
                for member, reason in self._managers().ineligible_members(requested):
                    by_member.setdefault(member, (requested, reason))
        for member, (requested, reason) in by_member.items():
            if now_ms < self._ineligible_due_ms.get(member, now_ms):
                continue
            self._ineligible_due_ms[member] = now_ms + _INELIGIBLE_INTERVAL_MS
            topic = self._managers().state.topics[requested.topic_id].name
            self._log.info(
                "isr_member_ineligible",
                member=member,
                leader=request.broker_id,
                partition=f"{topic}-{requested.partition}",
                reason=reason,
            )

    def note_changes(self, records: Sequence[Record]) -> None:
        moved = [r for r in records if isinstance(r, PartitionChangeRecord)]
        leaders_moved = sum(record.leader is not None for record in moved)
        self._metrics.count("LeaderChangeCount", leaders_moved)
        self._metrics.count(
            "UncleanLeaderElectionCount", sum(record.leader_recovering is True for record in moved)
        )
        for record in records:
            if isinstance(record, RegisterBrokerRecord):
                self._log.info(
                    "broker_registered",
                    broker_id=record.broker_id,
                    epoch=record.broker_epoch,
                    log_dirs=list(map(str, record.log_dirs)),
                )
            elif isinstance(record, UnregisterBrokerRecord):
                self._log.info("broker_unregistered", broker_id=record.broker_id)
            elif isinstance(record, RegisterControllerRecord):
                self._log.info(
                    "controller_registered",
                    controller=record.controller_id,
                    incarnation=str(record.incarnation_id),
                    version=record.software_version,
                )
            elif isinstance(record, UnregisterControllerRecord):
                self._log.info("controller_unregistered", controller=record.controller_id)
            elif isinstance(record, BrokerRegistrationChangeRecord):
                self._note_registration_change(record, leaders_moved)

    def _note_registration_change(
        self, record: BrokerRegistrationChangeRecord, leaders_moved: int
    ) -> None:
        log = self._log.bind(broker_id=record.broker_id, leaders_moved=leaders_moved)
        broker = self._managers().state.brokers[record.broker_id]
        if record.impaired_log_dirs is not None:
            states = {str(one.directory_id): one.state.value for one in record.impaired_log_dirs}
            if states:
                log.warning("broker_log_dirs_impaired", impaired=states)
            else:
                log.info("broker_log_dirs_well_again")
        if record.log_dirs is not None:
            log.warning(
                "broker_log_dirs_offline",
                online=list(map(str, broker.log_dirs)),
                offline=list(map(str, broker.offline_log_dirs)),
            )
        if record.fenced:
            self._fenced(record.broker_id)
            log.warning("broker_fenced")
        elif record.fenced is False:
            log.info("broker_unfenced")
        if record.in_controlled_shutdown:
            log.info("broker_shutting_down")

    def publish_figures(self, committed_offset: Callable[[], int]) -> None:
        managers, gauge = self._managers, self._metrics.gauge
        gauge("ActiveBrokerCount", lambda: managers().broker_counts()[0])
        gauge("FencedBrokerCount", lambda: managers().broker_counts()[1])
        gauge("ControlledShutdownBrokerCount", lambda: managers().broker_counts()[2])
        gauge(
            "SaturatedLogDirectoryCount",
            lambda: managers().impaired_dir_count(LogDirState.SATURATED),
        )
        gauge(
            "StalledLogDirectoryCount",
            lambda: managers().impaired_dir_count(LogDirState.STALLED),
        )
        gauge("LastResortLeaderCount", lambda: managers().last_resort_leader_count())
        gauge("OfflinePartitionsCount", lambda: managers().index.leaderless_count)
        gauge("PreferredReplicaImbalanceCount", lambda: managers().index.imbalanced_count)
        gauge("ReassigningPartitions", lambda: managers().index.reassigning_count)
        gauge("GlobalTopicCount", lambda: len(managers().state.topics))
        gauge("GlobalPartitionCount", lambda: len(managers().index))
        gauge("LastAppliedRecordOffset", lambda: managers().state.offset)
        gauge("LastCommittedRecordOffset", committed_offset)
