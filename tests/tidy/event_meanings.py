"""Descriptions of the events in docs/events.md. test_manual.py finds missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    # broker: requests, groups, the controller
    "acks_0_produce_failed": "A batch of a producer with acks=0 was refused; the producer's "
    "connection is closed, so that it refreshes its metadata.",
    "config_key_without_effect": "The node's file has a key of Kafka that has no effect here; the "
    "event gives the reason.",
    "tls_certificate_loaded": (
        "A listener uses the certificate of this subject, which expires at the logged time."
    ),
    "tls_certificate_renewed": (
        "Files of keystore or truststore changed, and new connections of the listener use them."
    ),
    "tls_renewal_failed": (
        "Files of keystore or truststore changed, and cannot be used for the logged reason. New "
        "connections use the keys and certificates from before."
    ),
    "tls_certificate_expires_soon": (
        "The certificate of a listener expires within 30 days, or has expired. Logged once per "
        "day: replace the files."
    ),
    "tls_handshake_failed": (
        "A client could not complete the TLS handshake, for the logged reason. Its connection was "
        "closed."
    ),
    "tls_record_refused": (
        "The other side of a connection sent a TLS record that cannot be decrypted, or refused the "
        "certificate of this side, for the logged reason. The connection was closed."
    ),
    "node_principal_refused": (
        "A connection sent a request of a broker or controller that its principal is not, by "
        "cluster.node.principals. `claimed` is the id in the request. The request was refused."
    ),
    "unknown_config_key": "The node's file has a key that neither Kafka nor kraftjbod knows: a "
    "typing error, or a key of another version. The key is ignored.",
    "secret_readable_by_others": (
        "Each user of this host can read a file with secrets: the file of a reference, or the "
        "configuration file, with secret values of `keys`. Run `chmod o-r` on it."
    ),
    "authentication_failed": (
        "A client could not prove its identity. It got an error, and its connection was closed."
    ),
    "authentication_expired": (
        "A client did not log in again in the time of `connections.max.reauth.ms`, or before its "
        "token expired. Its connection was closed, and most clients connect again at once."
    ),
    "jwks_loaded": (
        "The broker uses new keys of the identity provider. `left_out` is the number of keys that "
        "cannot verify tokens."
    ),
    "jwks_refresh_failed": (
        "The keys of the identity provider could not be read. The broker keeps the `keys` keys of "
        "the previous read, and tries again. Logged once for each reason."
    ),
    "group_partition_loaded": "This broker now coordinates the groups of that partition.",
    "group_partition_not_loaded": (
        "The log of the partition cannot be read at the moment; the load is retried."
    ),
    "group_partition_unloaded": (
        "This broker dropped the groups of that partition, because it no longer leads the "
        "partition, loads it again, or stops. Waiting requests failed."
    ),
    "group_partition_unreadable": (
        "The log of the partition is damaged: its groups wait until another broker leads it."
    ),
    "leadership_subscriber_failed": "A bug in a subscriber of leadership changes; report it.",
    "offsets_topic_not_created": (
        "Groups wait until the topic exists; usually there are too few brokers for it."
    ),
    "controller_of_another_log": (
        "Another controller has a different metadata log, as after a mistaken --standalone. Its "
        "messages are refused."
    ),
    "raft_leader_lacks_committed": (
        "The elected leader lacks entries that are committed here: a majority of the voters "
        "lost its disks. This controller does not follow it; see situations/quorum-lost.md."
    ),
    "raft_leader_resigns": (
        "The disk of the active controller does not accept writes. It asks another controller "
        "to become the leader."
    ),
    "raft_leader_stood_still": (
        "The active controller was paused for so long that another one may have been elected. "
        "It makes no decision and sends no response until a majority has confirmed its "
        "leadership."
    ),
    "voters_changed": (
        "An entry of the metadata log names the voters from there on. It applies before it is "
        "committed."
    ),
    "quorum_search_failed": (
        "A controller without a vote asked one of its addresses for the voters and got no "
        "useful answer. It asks the next address, and repeats all of them."
    ),
    "raft_leadership_lost": (
        "This controller is not active any more. Requests without a committed entry get "
        "NOT_CONTROLLER, and their senders repeat them."
    ),
    "replica_move_refused": "A requested move to another directory is impossible.",
    "topic_auto_creation_refused": (
        "A client named a missing topic, and the controller refused to create it."
    ),
    "transactions_topic_not_created": (
        "Too few brokers are alive to create `__transaction_state`. Transactions are refused "
        "until there are enough."
    ),
    "transaction_partition_loaded": (
        "This broker now coordinates the transactions of that partition."
    ),
    "transaction_partition_not_loaded": (
        "The log of the partition cannot be read at the moment; the load is retried."
    ),
    "transaction_partition_unloaded": (
        "This broker dropped the transactions of that partition, because it no longer leads the "
        "partition, or stops. Waiting requests failed."
    ),
    "transaction_partition_unreadable": (
        "The log of the partition is damaged: its transactions wait until another broker leads it."
    ),
    "transaction_timed_out": (
        "A transaction was open for longer than its producer's time-out: it is aborted, and the "
        "producer is fenced."
    ),
    "transaction_markers_refused": (
        "The leader of a partition refused the markers of a transaction, because a newer "
        "coordinator or a newer producer epoch has written there. This coordinator does not send "
        "them again."
    ),
    "markers_not_sent": "A request with transaction markers failed; the markers are sent again.",
    "applied_metadata_not_written": (
        "The broker could not write to disk up to which offset it has applied the metadata."
    ),
    "broker_heartbeat_failed": (
        "The controller did not answer a heartbeat. The broker sends it again."
    ),
    "broker_limits": (
        "The broker's limits, derived from the configuration and the process limits: file "
        "descriptors by use, open segments, connections, and the memory of index cache, "
        "requests, responses and compaction."
    ),
    "broker_must_stop": (
        "The broker stops: the cluster refuses it, or no controller acknowledged the failure of "
        "a directory."
    ),
    "broker_login_failed": (
        "This broker could not log in to another one by SASL: its user or password is wrong, or "
        "its credential of SCRAM does not exist. It tries again. Logged once per reason."
    ),
    "broker_registration_failed": (
        "The controller did not accept the registration. The broker sends it again."
    ),
    "controlled_shutdown_unfinished": (
        "Not all leaders were moved in time. The broker stops nevertheless."
    ),
    "controller_not_active": (
        "The broker looked for the active controller, and this controller is not active or did not "
        "answer."
    ),
    "controller_call_repeated": "A request to the controller is sent again.",
    "dynamic_config_changed": "These dynamic values of this broker apply from now on.",
    "dynamic_config_unusable": "A value in the metadata is invalid; the previous one applies.",
    "log_dir_change_refused": "The controller refuses a change of this broker's directories.",
    "log_dir_failure_acknowledged": (
        "The controller has recorded that the directory is offline and has elected other leaders, "
        "or the directory returned or was forgotten before that."
    ),
    "metadata_log_replaced": (
        "The broker follows another metadata log, because an operator made it forget the previous "
        "one. It reads the new log from the beginning."
    ),
    "registered_with_controller": (
        "The controller has registered this broker, which is still fenced."
    ),
    "replica_assignment_refused": "The controller refuses the reported directory of a replica.",
    "replica_assignments_failed": (
        "Reports of the directories of replicas were not acknowledged. The broker sends them again."
    ),
    "topic_config_unusable": (
        "A topic's configuration is invalid. The broker uses the defaults for this topic."
    ),
    "unfenced_by_controller": "The controller has unfenced the broker. It may become a leader.",
    "metadata_fetch_failed": (
        "The controller does not answer. The broker continues with the metadata that it has."
    ),
    "metadata_fetch_resumed": "The controller answers metadata fetches again.",
    "metadata_refused": (
        "The controller has other metadata than this broker has applied. The broker waits."
    ),
    # broker: directories
    "arriving_logs_loading": (
        "Progress of loading the logs of a directory that was attached or reattached."
    ),
    "cordon_lifted": (
        "The broker removed a forgotten directory from `cordoned.log.dirs`, so that a new disk at "
        "this path accepts replicas."
    ),
    "cordon_not_lifted": (
        "The operation on the directory succeeded, but its cordon could not be lifted: remove "
        "the directory from `cordoned.log.dirs`."
    ),
    "cordoned_log_dirs_not_here": (
        "`cordoned.log.dirs` names directories that this broker does not have."
    ),
    "forgotten_log_dir_not_closed": "The files of a forgotten directory could not be closed.",
    "log_dir_failure_unhandled": (
        "A bug: the broker could not react to the failure of a directory, and stops. Report it."
    ),
    "log_dir_filling_up": (
        "The free space of the disk fell below `log.dir.warn.free.percent`. The event has the "
        "growth and the estimated time until the disk is full."
    ),
    "log_dir_no_longer_filling_up": (
        "The free space of the disk is at least 1 % above `log.dir.warn.free.percent` again."
    ),
    "log_dir_not_measured": (
        "The latency of a small write to the directory could not be measured this time."
    ),
    "log_dir_not_slow_any_more": (
        "The directory is as fast as the broker's other directories again."
    ),
    "log_dir_operation_began": (
        "An operator's operation on a directory (attach, forget, ...) begins."
    ),
    "log_dir_operation_done": "An operation on a directory is complete.",
    "log_dir_failure_unreported": (
        "No controller acknowledged the failure of a log directory within "
        "`log.dir.failure.timeout.ms`, and the broker leads partitions there. The daemon ends with "
        "exit code 69."
    ),
    "log_dir_operation_refused": (
        "An operation on a directory is impossible; the reason says what to do."
    ),
    "log_dir_replicas_impaired": (
        "The replicas of the directory accept no records until the directory recovers. Other "
        "replicas lead if possible."
    ),
    "log_dir_replicas_offline": (
        "The replicas of the directory are offline. Other replicas lead if possible."
    ),
    "log_dir_replicas_recovered": "The replicas of the directory accept records again.",
    "log_dir_slow": "The directory is much slower than the broker's other directories.",
    "log_dir_still_offline": "The broker tried to reattach the directory, without success.",
    "log_dirs_cordoned": (
        "The set of cordoned directories changed. `paths` lists all directories that accept no "
        "new replicas."
    ),
    "replicas_in_unknown_log_dir": (
        "The metadata assigns replicas to a directory that this broker does not know."
    ),
    "stray_not_purged": "A stray replica could not be removed. The broker tries again.",
    "stray_purged": "A stray replica was removed after its retention time.",
    "wall_clock_trusted": "The wall clock of this machine is trusted again.",
    "wall_clock_jumped": (
        "The wall clock jumped. Until the clock jumps back, or for a day, retention deletes "
        "records only if they are expired by the time with the jump and by the time without it."
    ),
    # broker: following
    "leader_log_start_not_followed": (
        "A replica on a full disk could not delete the records that its leader had deleted."
    ),
    "leader_log_starts_unknown": (
        "A leader did not answer the request for the start offsets of its logs."
    ),
    "replica_fetch_delayed": (
        "The leader refuses the fetch of a replica, or the replica's directory does not accept "
        "records. The broker fetches again after a pause."
    ),
    "replica_fetch_failed": "A leader does not answer. The broker fetches again after a pause.",
    "replica_fetch_resumed": "A leader answers fetches again.",
    "replica_log_restarted": (
        "The leader has none of this replica's offsets any more. The replica restarts at the "
        "leader's log start offset."
    ),
    "replica_truncated": "The replica truncated records that its leader does not have.",
    # broker: moves between directories
    "asked_move_not_forgotten": "The stored request of a finished move could not be removed.",
    "replica_move_ended": "A move was cancelled or is not requested any more.",
    "replica_move_failed": (
        "A directory of a move failed, or its target is full; request the move again."
    ),
    "replica_move_paused": "The move waits until a directory accepts operations again.",
    "replica_move_phase": "The move reached its next phase.",
    "replica_move_resumed": "The move continues after a restart.",
    "replica_move_stalled": (
        "A move has made no progress for a while; the event has its phase and lag. If the phase is "
        "`copying`, the throttle of the move may be too low."
    ),
    "replica_move_started": "The broker begins to copy a replica to the target directory.",
    "replica_move_step_failed": "One step of the move failed and is retried.",
    "replica_moved": "The copy in the target directory has replaced the replica.",
    # broker: replicas
    "alter_partition_failed": (
        "Requests to change in-sync replicas failed. The broker sends them again."
    ),
    "damaged_replica_leaves_in_sync_set": (
        "At the start a part of the replica's log was found missing. The replica leaves the "
        "in-sync set before it can lead, and fetches the log again."
    ),
    "damaged_follower_leaves_in_sync_set": (
        "The log of a follower is damaged: it leaves the in-sync set, truncates the damage and "
        "fetches again."
    ),
    "damaged_leader_has_no_heir": (
        "The log of a leader is damaged, and no other replica is in sync. The leader serves its "
        "intact records."
    ),
    "damaged_leader_steps_down": "The log of a leader is damaged: another in-sync replica leads.",
    "deleted_replica_kept": (
        "A copy of a replica was marked as deleted, and the broker has no other copy in the "
        "directory that the metadata names. The marked copy is kept: it may be the last one."
    ),
    "deleted_replica_not_restored": (
        "A replica that was marked as deleted and is needed could not be restored."
    ),
    "deleted_replica_restored": "A replica that was marked as deleted is served again.",
    "future_replica_adopted": "The copy of an unfinished move replaces a replica that is missing.",
    "future_replica_not_removed": (
        "The copy of an unfinished move could not be removed, because its directory failed or "
        "is impaired."
    ),
    "isr_change_refused": "The controller refused a change of in-sync replicas.",
    "isr_member_ineligible": (
        "The controller refused a new in-sync replica that is ineligible at present; the event "
        "has the reason. The leader tries again while the replica follows."
    ),
    "isr_members_lag": (
        "Followers lag for too long. The leader asks the controller to remove them from the "
        "in-sync set."
    ),
    "last_in_sync_replica_lost": (
        "The only complete replica is missing. Repair its disk, or elect another replica as "
        "leader with data loss."
    ),
    "replica_awaits_impaired_dir": "A new replica waits until a directory accepts it.",
    "replica_awaits_new_leader_epoch": (
        "The replica was created in the place of a lost leader. It leads only after an election."
    ),
    "replica_awaits_offline_dir": (
        "The replica may be in a directory that is offline: it is not created elsewhere."
    ),
    "replica_creation_failed": (
        "The log of a new replica could not be created. The broker tries again."
    ),
    "replica_found_elsewhere": (
        "The files of a replica were moved while the broker was down, or a move was "
        "interrupted; the new place is accepted. Unless the copy is complete, the replica "
        "leaves the in-sync set first."
    ),
    "replica_lost_flushed_records": (
        "The disk lost flushed records of a replica. The replica leaves the in-sync set before "
        "it fetches."
    ),
    "replica_made_of_deleted_copy": (
        "A missing replica is created from its copy that was marked as deleted and kept."
    ),
    "replica_made_of_stray": (
        "The metadata assigns a replica that the broker had set aside as a stray. The stray is "
        "used."
    ),
    "replica_removal_failed": (
        "A removed replica could not be deleted or set aside, because its directory failed. The "
        "next start repeats that."
    ),
    "replica_reported_lost": (
        "The broker reports to the controller that a replica is lost. Other replicas lead."
    ),
    "stray_not_taken_back": (
        "The metadata assigns a stray replica again, but the stray could not be used."
    ),
    "stray_replica_set_aside": (
        "The metadata does not assign this replica to the broker. The broker keeps it for a "
        "while and does not serve it."
    ),
    "stray_taken_back": "The metadata assigns a stray replica again, and the broker uses it.",
    "log_ends_unknown": (
        "A leader did not report the end offsets of its logs. The lag of the groups that read "
        "them is unknown."
    ),
    "samples_dropped": (
        "Samples for `__storage_telemetry` or `__group_telemetry` could not be sent in time. "
        "Logged once until they can be sent again."
    ),
    "samples_round_failed": "A bug in the samples cost one round; report it.",
    "samples_sent_again": "Samples can be sent again.",
    "samples_topic_created": "The controller created a telemetry topic at this broker's request.",
    # controller
    "broker_gone": (
        "The broker closed its connection and did not return, or its address refuses "
        "connections: it is fenced."
    ),
    "broker_fenced": (
        "The broker is fenced: it leads no partition until it returns. It also leaves all in-sync "
        "sets; without eligible leader replicas (KIP-966), the last member of a set stays."
    ),
    "broker_knows_other_metadata": (
        "A broker has applied another metadata log, more entries than this log has, or another "
        "entry at the same offset."
    ),
    "broker_log_dirs_impaired": "Directories of the broker are full or hang.",
    "broker_log_dirs_offline": (
        "Directories of the broker are offline. Other replicas of their partitions lead."
    ),
    "broker_log_dirs_well_again": "No directory of the broker is full or hangs any more.",
    "broker_registered": "A broker has registered.",
    "broker_unregistered": (
        "An operator removed the registration of a broker that is stopped permanently."
    ),
    "broker_session_expired": "The broker sent no heartbeat for too long and is fenced.",
    "broker_shutting_down": "The broker shuts down; its leaders are moved to other brokers.",
    "broker_unfenced": "The broker is unfenced and may lead.",
    "controller_active": "This controller is the active one now.",
    "controller_config_changed": (
        "`values` lists the settings of this controller that differ from its file."
    ),
    "controller_registered": (
        "A controller has started and registered; the event has its incarnation and version."
    ),
    "controller_registration_failed": (
        "This controller is not registered with the active one yet. It tries again."
    ),
    "controller_registration_replaced": (
        "Another process has registered with this controller's id: stop one of the two, and "
        "give it another id."
    ),
    "controller_unregistered": (
        "An operator removed the registration of a controller that is not a voter any more."
    ),
    "controller_refused_by_peer": (
        "Another controller does not accept this one as a voter. The reason names the changed "
        "key or disk."
    ),
    "controller_resigned": (
        "Another controller is active, or none at present. Uncommitted decisions of this one "
        "may be lost."
    ),
    "controller_pass_failed": (
        "A periodic task of the active controller failed. The next round tries again."
    ),
    "controller_passes_wait": (
        "The periodic tasks of the active controller wait, because the metadata log cannot be "
        "written."
    ),
    "controller_was_paused": (
        "The controller's process was paused. Missing heartbeats of brokers during the pause do "
        "not count."
    ),
    "decision_not_replayable": (
        "A bug: the controller rejected its own decision before writing it. Report it."
    ),
    # daemons
    "unheard_operation_failed": (
        "A bug: an operation failed unexpectedly, and no code received its error. Report it."
    ),
    "background_job_failed": (
        "A bug ended one run of a background job. Periodic jobs are restarted. Report the bug."
    ),
    "background_job_waits": (
        "The process is at a limit, such as its file descriptors. The background job is "
        "restarted later."
    ),
    "broker_started": "The broker serves requests.",
    "controller_started": "The controller serves requests.",
    "daemon_crashed": "An unexpected error ends the process; report it.",
    "daemon_stopped": (
        "Last event of a daemon that stops. `exit_code` says whether the stop was orderly (0). A "
        "daemon that is killed, or gets a second signal, does not log it."
    ),
    "logs_loading": "Progress of loading the logs at the start.",
    "loop_complaint": (
        "An error of a socket or callback that no caller received. Report it if it repeats."
    ),
    "metadata_log_forked": (
        "The metadata log was restored from a backup and continues as a new log."
    ),
    "min_insync_replicas_of_file_ignored": (
        "This broker's file sets a `min.insync.replicas` below the default, which has no effect in "
        "a broker's file. Set it in the controllers' files."
    ),
    "peer_warnings_left_out": "`times` more warnings about one peer were not logged.",
    "stop_timed_out": "The stop took too long. The process ends without completing it.",
    "storage_lost": "The last log directory or the metadata directory is lost. The daemon ends.",
    "metrics_snapshot_failed": "The metrics file could not be written.",
    "metrics_snapshot_waits": "The disk of the metrics file does not answer.",
    "metrics_snapshots_resumed": "The disk of the metrics file answers again.",
    "service_manager_unreachable": "The daemon could not report its state to systemd.",
    "quorum_search_refused": (
        "Another controller does not allow this controller's host (cluster.action.allowed.hosts)."
    ),
    # connections
    "cluster_action_refused": (
        "A host outside the cluster sent a request that only members may send "
        "(cluster.action.allowed.hosts)."
    ),
    "connection_broke_protocol": (
        "A peer sent bytes that are no request. The connection was closed."
    ),
    "connection_turned_away": (
        "A connection was refused. The limit of connections is reached, in total or for that "
        "address, or the address opens connections faster than its quota, or the process is short "
        "of file descriptors; `reason` says which."
    ),
    "silent_connections_reset": (
        "The broker returned from an outage in which its session expired. It reset the "
        "connections that were silent during the outage, so that their clients look for the "
        "current leaders immediately."
    ),
    "connections_aborted_at_stop": "These connections did not end in time at the stop.",
    "listener_shutdown_failed": "A listening socket could not be shut down at the stop.",
    "memory_reclaimed": "The broker closed slow connections, because it needed their memory.",
    "request_handler_failed": (
        "A bug: the handler of a request failed, and the connection was closed. Report it."
    ),
    # the metadata log
    "metadata_snapshot_damaged": "The metadata snapshot on this disk changed after it was written. "
    "It is not used, and a new one is written. Check the disk.",
    "metadata_log_damaged": (
        "A part of the metadata log cannot be read, and the controller ends. With several "
        "controllers, replace its metadata directory; with a single one, restore a backup "
        "(controllers.md)."
    ),
    "metadata_log_failed": "The metadata log cannot be written any more. The controller ends.",
    "metadata_log_goes_on": "The metadata log can be written again.",
    "metadata_log_is_short": (
        "A controller discarded a damaged end of its log. It follows, but neither votes nor "
        "stands for election until it has all entries again that it may have acknowledged."
    ),
    "metadata_log_is_whole": "The controller has all these entries again, and votes.",
    "metadata_log_repaired": (
        "The controller repaired its metadata log at the start: it removed an incomplete or "
        "damaged end, or passed over a damaged snapshot. `what` has the details."
    ),
    "metadata_log_waits": (
        "The metadata disk hangs, or it is full and the released reserve is used up. The "
        "controller makes no decisions until the disk recovers."
    ),
    "static_voters_noted": "The voters of this log were written to a file beside it.",
    "static_voters_wait": (
        "The disk of the file of voters is full or hangs. The voters are written when it recovers."
    ),
    "metadata_snapshot_failed": (
        "A metadata snapshot could not be written, or could not be received from the active "
        "controller. The controller tries again later."
    ),
    "metadata_snapshot_postponed": "There is no space for a metadata snapshot at present.",
    "metadata_reloaded": (
        "The controller reloaded its state from the log: uncommitted decisions were replaced by "
        "others, or a snapshot came from the active controller."
    ),
    "metadata_snapshot_received": (
        "This controller lagged behind the start of the active one's log and received a snapshot."
    ),
    "metadata_snapshot_written": (
        "A metadata snapshot was written. Log entries before it are not needed any more."
    ),
    # tools
    "records_acknowledged": (
        "The cluster acknowledged the records that a task of a Spark writer wrote to a partition."
    ),
    # compaction
    "compaction_files_kept_open": "Files of a finished compaction could not be closed yet.",
    "compaction_leftover_kept": (
        "A file of a finished compaction could not be removed. The broker tries again."
    ),
    "compaction_put_off": (
        "The directory cannot be read or written now. Its logs are compacted later."
    ),
    "log_compacted": "The compaction of a log is complete.",
    "log_uncleanable": "The log cannot be compacted and is skipped from now on.",
    "no_space_to_compact": "A compaction needs more free space than the directory has.",
    "uncleanable_log_read": (
        "The damaged part of an uncleanable log was read again, so that the damage is handled."
    ),
    # log directories
    "log_dir_answers_again": (
        "No operation of the directory is overdue any more; `state` says whether the disk is full."
    ),
    "log_dir_has_space_again": "The directory accepts records again.",
    "log_dir_load_crashed": (
        "Loading a directory at the start met an unexpected error; the directory is offline. "
        "Report the error as a bug."
    ),
    "log_dir_not_opened": (
        "The directory cannot be used, at the start or after an operator's request. The reason "
        "says why."
    ),
    "log_dir_offline": (
        "The directory failed. Repair its disk and reattach it, or replace the disk."
    ),
    "log_dir_operation_lacked_resources": (
        "`times` operations failed because the system lacked memory or descriptors; the disk is "
        "not at fault. Raise the limit of open files."
    ),
    "log_dir_operation_made_no_sense": (
        "A bug: the operating system rejected an operation as invalid. Report it."
    ),
    "log_dir_reserve_rebuilt": "The reserve file for the next full disk has its full size again.",
    "log_dir_reserve_released": (
        "The reserve file was released, so that deletes work on the full disk."
    ),
    "log_dir_saturated": "The disk is full. The directory accepts no records until there is space.",
    "log_dir_stalled": (
        "An operation does not end, or the directory was demoted because it is slow "
        "(`log.dir.slow.action`). Requests do not wait for the directory any more."
    ),
    "log_dir_given_id": (
        "The broker wrote the first `meta.properties` of an empty directory, with its directory id."
    ),
    "new_log_dir_not_taken": (
        "The broker refuses a path that an operator wants to add; the event has the reason."
    ),
    "added_log_dir_not_configured": (
        "The directory was added at run time and is not in `log.dirs`: add it there."
    ),
    "known_log_dirs_not_written": "The list of the broker's directories could not be written.",
    # logs and replicas on disk
    "housekeeping_skipped": (
        "Retention or a checkpoint failed this time. The next round tries again."
    ),
    "log_dir_not_closed_cleanly": (
        "The directory was not closed cleanly. The next start scans its logs."
    ),
    "replica_copy_not_removed": "A superfluous copy of a replica could not be removed.",
    "replica_copy_superseded": (
        "A directory that returned has a copy of a replica that the broker serves from another "
        "directory. A copy that ends no later is deleted, and a longer one is set aside as a stray "
        "(`kept`)."
    ),
    "replica_found_twice": "Two directories hold the same replica.",
    "superseded_copy_not_removed": (
        "A superseded copy could not be set aside yet. It is not served."
    ),
    "asked_moves_unreadable": (
        "Stored requests of moves cannot be read. Moves in progress may have to be requested again."
    ),
    "leftover_copy_not_removed": (
        "An unfinished copy, or one marked as deleted, could not be removed because its "
        "directory failed. The next start removes it."
    ),
    "deleted_replica_not_known": (
        "The partition of a replica marked as deleted cannot be read. The replica is removed "
        "like the others, or at the next start if its disk does not answer."
    ),
    "future_copy_dropped": (
        "Two directories have unfinished copies of the same replica. The longest copy is kept, and "
        "this one is removed."
    ),
    "future_copy_not_opened": (
        "A crash interrupted a move at its last step, and the copy cannot be opened. The "
        "original replica remains in use."
    ),
    "future_copy_not_removed": (
        "An unfinished copy could not be removed, because its directory failed. The next start "
        "removes it."
    ),
    "future_copy_not_resumed": "A move cannot continue with its copied files, and restarts.",
    "future_copy_resumed_later": "A step of the move still hangs. The broker waits for it.",
    "future_copy_of_no_use": (
        "An unfinished copy is removed: it belongs to an earlier topic of that name, or the "
        "replica is in the same directory."
    ),
    "future_copy_unreadable": "The state of a future copy cannot be read; its move restarts.",
    "log_damaged": (
        "Records of a log are damaged or missing, from `offset` to `next_offset`. The replica is "
        "repaired from other replicas if there are any (situations/log-damaged.md)."
    ),
    "log_index_mended": "An index of a segment was damaged or missing. The broker rebuilt it.",
    "checkpoint_unreadable": (
        "A file of offsets of a directory cannot be read. The broker continues without its values."
    ),
    "log_tail_truncated": (
        "Incomplete or damaged records at the end of a log were truncated. A crash leaves such "
        "records."
    ),
    "move_not_forgotten": "The stored request of a finished move could not be removed.",
    "replica_not_loaded": (
        "A replica was not loaded, because its full directory has no space for the files that "
        "loading writes."
    ),
    "replica_set_aside_as_stray": (
        "The file that names the topic of this replica is damaged or missing. The broker keeps the "
        "records and does not serve them."
    ),
    "stray_not_marked": (
        "A stray was set aside without the file that names its topic, because its directory "
        "accepts no writes yet."
    ),
    "swap_mended": (
        "A crash interrupted the last step of a move. The broker completed it or took it back."
    ),
    "swap_not_mended": (
        "The interrupted last step of a move could not be completed. The replica waits for its "
        "disk."
    ),
    "swap_not_undone": (
        "The failed last step of a move could not be taken back. The next start does so."
    ),
    "undone_swap_settled": (
        "After the last step of a move was taken back, two copies existed. The original one is "
        "used."
    ),
    "unknown_names_in_log_dir": "These files are not the broker's. They are ignored.",
    # the scrub
    "log_damage_found_by_scrub": (
        "Records on the disk are damaged. The replica is repaired from other replicas if there "
        "are any."
    ),
    "log_scrub_began": "A scrub begins to read and check all closed segments of the directory.",
    "log_scrub_completed": (
        "A scrub has checked all closed segments; `damages` is the number of damaged places."
    ),
    "log_scrub_ended": "The directory went offline before the scrub was complete.",
    "log_scrub_passed_over": "A segment was deleted or moved while the scrub read it.",
    "log_scrub_position_not_saved": (
        "The position of the scrub could not be saved. After a restart it reads some segments "
        "again."
    ),
    "log_scrub_put_off": "The scrub waits, because the directory is busy, full or hangs.",
    "log_scrub_readings_differ": (
        "The disk returned different bytes for two reads of the same place: suspect its cable "
        "or memory."
    ),
}
