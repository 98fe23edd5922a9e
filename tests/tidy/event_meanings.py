"""What each event means, one line each, for docs/events.md; a tidy test says which is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    # broker: requests, groups, the controller
    "acks_0_produce_failed": "A batch of a producer with acks=0 was refused; the producer's "
    "connection is closed, so that it refreshes its metadata.",
    "config_key_without_effect": "The node's file has a key of Kafka that has no effect here; the "
    "event gives the reason.",
    "unknown_config_key": "The node's file has a key that neither Kafka nor kraftjbod knows: a "
    "typing error, or a key of another version. The key is ignored.",
    "authentication_failed": (
        "A client could not prove its identity. It got an error, and its connection was closed."
    ),
    "group_partition_loaded": "This broker now coordinates the groups of that partition.",
    "group_partition_not_loaded": (
        "The log of the partition cannot be read at the moment; the load is retried."
    ),
    "group_partition_unloaded": (
        "Another broker leads the partition; waiting clients were redirected."
    ),
    "group_partition_unreadable": (
        "The log of the partition is damaged: its groups wait until another broker leads it."
    ),
    "leadership_subscriber_failed": "A bug in a subscriber of leadership changes; report it.",
    "offsets_topic_not_created": (
        "Groups wait until the topic exists; usually there are too few brokers for it."
    ),
    "controller_of_another_log": "Another controller holds a different metadata log, as after a "
    "mistaken --standalone; its messages are refused.",
    "raft_leader_lacks_committed": "The elected leader lacks entries that are committed here: a "
    "majority of the voters lost its disks. It is not followed; see situations/quorum-lost.md.",
    "raft_leader_resigns": (
        "The disk of the active controller does not take writes; another controller is asked to "
        "take over."
    ),
    "raft_leader_stood_still": (
        "The active controller was paused for so long that another one may have been elected. "
        "It decides and answers nothing until a majority has confirmed that it still follows."
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
        "There are too few brokers for it, and no transactions until there are enough."
    ),
    "transaction_partition_loaded": (
        "This broker now coordinates the transactions of that partition."
    ),
    "transaction_partition_not_loaded": (
        "The log of the partition cannot be read at the moment; the load is retried."
    ),
    "transaction_partition_unloaded": (
        "Another broker leads the partition; waiting clients were redirected."
    ),
    "transaction_partition_unreadable": (
        "The log of the partition is damaged: its transactions wait until another broker leads it."
    ),
    "transaction_timed_out": (
        "A transaction was open for longer than its producer's time-out: it is aborted, and the "
        "producer is fenced."
    ),
    "transaction_markers_refused": "A newer coordinator ends the transaction.",
    "markers_not_sent": "A broker did not accept transaction markers; they are sent again.",
    "applied_metadata_not_written": (
        "How far this broker follows the metadata could not be noted on disk."
    ),
    "broker_heartbeat_failed": "The controller did not answer a heartbeat; it is sent again.",
    "broker_limits": (
        "What its limits come to: descriptors and who gets them, open segments, connections, and "
        "the memory of index cache, requests, responses and compaction."
    ),
    "broker_must_stop": (
        "The cluster refuses this broker, or no controller received the failure of a directory: "
        "the broker ends."
    ),
    "broker_registration_failed": "The controller did not take the registration; it is sent again.",
    "controlled_shutdown_unfinished": (
        "Not all leaders moved away in time; the broker stops nevertheless."
    ),
    "controller_not_active": "A controller lets requests wait; this one is not active.",
    "controller_call_repeated": "A request to the controller is sent once more.",
    "dynamic_config_changed": "These dynamic values of this broker apply from now on.",
    "dynamic_config_unusable": "A value in the metadata is invalid; the previous one applies.",
    "log_dir_change_refused": "The controller refuses added or removed directories of this broker.",
    "log_dir_failure_acknowledged": (
        "The controller knows that the directory is offline, and has acted."
    ),
    "metadata_log_replaced": "The controller's log comes from a backup: it is followed anew.",
    "registered_with_controller": "The cluster knows this broker, which is still fenced.",
    "replica_assignment_refused": "The controller refuses the reported directory of a replica.",
    "replica_assignments_failed": (
        "Reports of where replicas are did not arrive; they are sent again."
    ),
    "topic_config_unusable": "A topic's configuration cannot be used; the defaults hold for it.",
    "unfenced_by_controller": "The broker may lead from now on.",
    "metadata_fetch_failed": "The controller does not answer; the metadata that is known holds.",
    "metadata_fetch_resumed": "It answers again.",
    "metadata_refused": (
        "The controller has other metadata than this broker followed; the broker waits."
    ),
    # broker: directories
    "arriving_logs_loading": "Logs of a directory that came back are loaded, as far as this.",
    "cordon_lifted": "A directory takes new replicas again, because an operator said so.",
    "cordon_not_lifted": (
        "The order is done but for the cordon: take the directory out of `cordoned.log.dirs`."
    ),
    "cordoned_log_dirs_not_here": (
        "The configuration cordons directories that this broker does not have."
    ),
    "forgotten_log_dir_not_closed": (
        "A directory was forgotten while it could not be closed in order."
    ),
    "log_dir_failure_unhandled": "A bug: the broker stops rather than lead what it cannot serve.",
    "log_dir_filling_up": "At this rate it will be full before long.",
    "log_dir_no_longer_filling_up": "It has space again, or grows no more.",
    "log_dir_not_measured": ("How long a small write takes in it could not be measured now."),
    "log_dir_not_slow_any_more": "It answers as fast as its neighbours again.",
    "log_dir_operation_began": "An order about a directory (attach, forget, ...) is carried out.",
    "log_dir_operation_done": "It is done.",
    "log_dir_operation_refused": "It cannot be done; the reason says what to do.",
    "log_dir_replicas_impaired": (
        "Its replicas take nothing until it is well again; others lead where they can."
    ),
    "log_dir_replicas_offline": (
        "Its replicas are gone from this broker; others lead where they can."
    ),
    "log_dir_replicas_recovered": "Its replicas take everything again.",
    "log_dir_slow": "It answers much slower than its neighbours.",
    "log_dir_still_offline": "It was tried again, in vain.",
    "log_dirs_cordoned": ("These take no new replicas from now on; all others do."),
    "replicas_in_unknown_log_dir": (
        "Metadata has replicas in a directory that this broker does not know."
    ),
    "stray_not_purged": "A stray could not be removed; it is tried again.",
    "stray_purged": "A stray was removed after its retention time.",
    "wall_clock_believed": "The clock of this machine is trusted again.",
    "wall_clock_jumped": "Until it is back, or for a day, records go only if old by both times.",
    # broker: following
    "leader_log_start_not_followed": "A full replica could not let go what its leader deleted.",
    "leader_log_starts_unknown": "A leader could not be asked where its logs begin.",
    "replica_fetch_delayed": (
        "Its leader refuses, or its own directory does; it is fetched again after a pause."
    ),
    "replica_fetch_failed": "A leader does not answer; it is asked again after a pause.",
    "replica_fetch_resumed": "It answers again.",
    "replica_starts_anew": (
        "The leader has none of this replica's offsets any more: the replica restarts at the "
        "leader's log start."
    ),
    "replica_truncated": "Records that the leader does not have were cut off before following it.",
    # broker: moves between directories
    "asked_move_not_forgotten": "The note of a finished move could not be removed.",
    "replica_move_ended": "A move was cancelled or is not requested any more.",
    "replica_move_failed": (
        "A directory of a move failed, or its target is full; request the move again."
    ),
    "replica_move_paused": "The move waits until a directory accepts operations again.",
    "replica_move_phase": "The move reached its next phase.",
    "replica_move_resumed": "The move continues after a restart.",
    "replica_move_stalled": (
        "The copy does not catch up with the writes; its throttle may be too low."
    ),
    "replica_move_started": "A copy is being built in the target.",
    "replica_move_step_failed": "One step of the move failed and is retried.",
    "replica_moved": "The copy has taken the replica's place.",
    # broker: replicas
    "alter_partition_failed": "Requests to change in-sync sets failed; they are sent again.",
    "damaged_replica_leaves_in_sync_set": (
        "The start found that a part of the replica's log is lost. The replica leaves the in-sync "
        "set before it can lead, and fetches the log again."
    ),
    "damaged_follower_leaves_in_sync_set": (
        "The log of a follower is damaged: it leaves the in-sync set, truncates the damage and "
        "fetches again."
    ),
    "damaged_leader_has_no_heir": (
        "The log of a leader is damaged and no other replica is in sync: the intact records are "
        "served."
    ),
    "damaged_leader_steps_down": "The log of a leader is damaged: another in-sync replica leads.",
    "deleted_replica_kept": "A replica that metadata knows lay marked as deleted; it is kept.",
    "deleted_replica_not_restored": "It could not be given its name back.",
    "deleted_replica_restored": "It is served again.",
    "future_replica_adopted": (
        "The copy that a move built takes the place of a replica that is gone."
    ),
    "future_replica_not_removed": (
        "What a move left could not be removed, as its directory failed or is impaired."
    ),
    "isr_change_refused": "The controller refused a change of an in-sync set.",
    "isr_member_ineligible": "A leader requested an in-sync set with a member that is ineligible "
    "now; the event gives the reason. The leader retries while that member follows.",
    "isr_members_lag": "Followers lag for too long and should leave the in-sync set.",
    "last_in_sync_replica_lost": (
        "The only complete replica is missing: bring its disk back, or let another replica lead."
    ),
    "replica_awaits_impaired_dir": "A new replica waits until a directory accepts it.",
    "replica_awaits_new_leader_epoch": (
        "It came in a lost leader's place and leads only after an election."
    ),
    "replica_awaits_offline_dir": (
        "The replica may be in a directory that is offline: it is not created elsewhere."
    ),
    "replica_creation_failed": "Its log could not be made; it is tried again.",
    "replica_found_elsewhere": (
        "The files of a replica were moved while the broker was down, or a move was "
        "interrupted; the new place is accepted. Unless the copy is complete, the replica "
        "leaves the in-sync set first."
    ),
    "replica_lost_flushed_records": (
        "The disk lost flushed records of a replica: it leaves the in-sync set first."
    ),
    "replica_made_of_stray": "The metadata names a copy that was set aside, and it is used.",
    "replica_removal_failed": (
        "A replica that left is not removed, as its directory failed; the next start finds it."
    ),
    "replica_reported_lost": (
        "The controller is notified that a copy is lost, and other replicas lead."
    ),
    "stray_not_taken_back": "The metadata names a stray again, but it could not be used.",
    "stray_replica_set_aside": (
        "The metadata does not name this copy; it is kept for a while and not served."
    ),
    "stray_taken_back": "The metadata names a stray again, and it is used.",
    "log_ends_unknown": (
        "A leader did not say how far its logs reach; the lag of groups that read them is unknown."
    ),
    "samples_dropped": (
        "Samples for `__storage_telemetry` or `__group_telemetry` could not be sent in time; "
        "logged once per trouble."
    ),
    "samples_round_failed": "A bug in the samples cost one round; report it.",
    "samples_sent_again": "That trouble is over.",
    "samples_topic_created": "This broker had the topic made.",
    # controller
    "broker_gone": (
        "The broker closed its connection and did not return, or its address refuses "
        "connections: it is fenced."
    ),
    "broker_fenced": "The broker leads nothing and is in no in-sync set until it returns.",
    "broker_knows_other_metadata": (
        "A broker has followed another metadata log, or more of this one than exists."
    ),
    "broker_log_dirs_impaired": "Directories of the broker are full or hang.",
    "broker_log_dirs_offline": "Directories of the broker are dead; others lead what was there.",
    "broker_log_dirs_well_again": ("None of the broker's directories is full or hangs any more."),
    "broker_registered": "A broker has introduced itself.",
    "broker_unregistered": "An operator removed a broker that is stopped permanently.",
    "broker_session_expired": "The broker was silent for too long, and is fenced.",
    "broker_shutting_down": "Its leaders move away.",
    "broker_unfenced": "It may lead.",
    "controller_active": "This controller is the active one from now on.",
    "controller_config_changed": "What this controller goes by from now on, where that is not what "
    "its file says.",
    "controller_registered": "A controller has started: which incarnation of it, and its version.",
    "controller_registration_failed": "This controller is not registered with the active one yet; "
    "it asks again.",
    "controller_registration_replaced": "Another process has registered under this controller's "
    "id: stop one of the two, and give it an id of its own.",
    "controller_unregistered": "An operator took back the registration of a controller that does "
    "not vote any more.",
    "controller_refused_by_peer": (
        "Another controller does not accept this one as a voter: the reason names the changed "
        "key or disk."
    ),
    "controller_resigned": (
        "Another controller is active, or none at the moment; uncommitted decisions of this one "
        "may be lost."
    ),
    "controller_pass_failed": "A round of routine decisions failed; the next one tries again.",
    "controller_passes_wait": (
        "Nothing is decided by routine while the metadata log cannot be written."
    ),
    "controller_was_paused": (
        "The controller's process was paused: the silence of brokers meanwhile proves nothing."
    ),
    "decision_not_replayable": "A bug: a decision was refused before it was written; report it.",
    # daemons
    "background_job_failed": "A bug ended one run of that job, which is restarted; report it.",
    "background_job_waits": "The process is at a limit, such as its file descriptors; the job is "
    "started again later.",
    "broker_started": "It serves.",
    "controller_started": "It serves.",
    "daemon_crashed": "An unexpected error ends the process; report it.",
    "daemon_stopped": "The last word of an orderly end.",
    "logs_loading": "Logs are loaded at the start, as far as this.",
    "loop_complaint": (
        "A socket failed where nobody waited for it; report it if it comes again and again."
    ),
    "metadata_log_forked": "The log was restored from a backup, and goes on as one of its own.",
    "min_insync_replicas_of_file_ignored": "The controllers' files decide that, not this one's.",
    "peer_warnings_left_out": "So many more warnings about one peer were not logged.",
    "stop_timed_out": "The stop took too long; the process ends as it is.",
    "storage_lost": "The last or the metadata directory is gone: the daemon ends.",
    "metrics_snapshot_failed": "The file of figures could not be written.",
    "metrics_snapshot_waits": "The disk of that file does not answer.",
    "metrics_snapshots_go_on": "The disk of the metrics file answers again.",
    "service_manager_unreachable": "systemd could not be told how the daemon is.",
    "quorum_search_refused": (
        "Another controller does not allow this controller's host (cluster.action.allowed.hosts)."
    ),
    # connections
    "cluster_action_refused": (
        "A host outside the cluster sent a request that only members may send "
        "(cluster.action.allowed.hosts)."
    ),
    "connection_broke_protocol": "A peer sent what is no request, and its connection was ended.",
    "connection_turned_away": (
        "There is no place for more connections, in all or from that address."
    ),
    "silent_connections_reset": (
        "The broker returned from an outage in which its session ended. It reset the connections "
        "that were silent meanwhile, so that their clients look for the present leaders at once."
    ),
    "connections_aborted_at_stop": "These did not end in time at the stop.",
    "listener_shutdown_failed": "A listening socket could not be shut down at the stop.",
    "memory_reclaimed": "Slow connections were ended, because their memory was needed.",
    "request_handler_failed": "A bug: the connection was ended; report it.",
    # the metadata log
    "metadata_snapshot_damaged": "The metadata snapshot on this disk changed after it was written. "
    "It is not used, and a new one is written. Check the disk.",
    "metadata_log_damaged": "A part of it cannot be read: restore a backup.",
    "metadata_log_failed": "It cannot be written any more: the controller ends.",
    "metadata_log_goes_on": "The metadata log can be written again.",
    "metadata_log_is_short": "A controller gave up a damaged end of its log. It follows, and "
    "neither votes nor stands until it holds again all that it may have promised.",
    "metadata_log_is_whole": "It holds all of that again, and votes.",
    "metadata_log_repaired": "What a crash left half written was put right.",
    "metadata_log_waits": "The metadata disk is full or hangs: no decision is made meanwhile.",
    "static_voters_noted": "Who votes in this log is written beside it now.",
    "static_voters_wait": "Its disk is full: who votes in this log is noted once there is space.",
    "metadata_snapshot_failed": "A snapshot could not be written; the next one is tried later.",
    "metadata_snapshot_postponed": "There is no space for it now.",
    "metadata_reloaded": "What had been decided here was not committed, and other decisions took "
    "its place; or a snapshot came from the active controller.",
    "metadata_snapshot_received": "This controller lagged so far that the log of the active one "
    "does not reach back to it.",
    "metadata_snapshot_written": "What lies before it is not needed any more.",
    # tools
    "records_acknowledged": "A batch of the producing tool was acknowledged.",
    # compaction
    "compaction_files_kept_open": "Files of a pass that ended could not be closed now.",
    "compaction_leftover_kept": (
        "A file of a pass that ended could not be removed; it stays on the list."
    ),
    "compaction_put_off": "The directory takes nothing now; the log is compacted later.",
    "log_compacted": "A pass is done.",
    "log_uncleanable": "The log cannot be compacted, and is left alone.",
    "no_space_to_compact": "A pass needs more free space than there is.",
    "uncleanable_log_read": "It was read once more, so that what is damaged in it is known.",
    # log directories
    "log_dir_answers_again": (
        "No operation of the directory takes too long any more; `state` says whether it is full."
    ),
    "log_dir_has_space_again": "The directory accepts records again.",
    "log_dir_load_crashed": (
        "Loading a directory at the start met an unexpected error; the directory is offline. "
        "Report the error as a bug."
    ),
    "log_dir_not_opened": (
        "It cannot be used, at the start or by the order that brings it; the reason says why."
    ),
    "log_dir_offline": (
        "The directory failed. Repair its disk and reattach it, or replace the disk."
    ),
    "log_dir_operation_lacked_resources": (
        "`times` operations failed because the system lacked memory or descriptors; the disk is "
        "not at fault. Raise the limit of open files."
    ),
    "log_dir_operation_made_no_sense": "A bug: the system refused what was asked of it; report it.",
    "log_dir_reserve_rebuilt": "The reserve for the next full disk is whole again.",
    "log_dir_reserve_released": (
        "The reserve file was released, so that deletes work on the full disk."
    ),
    "log_dir_saturated": "The disk is full: it takes no records until there is space.",
    "log_dir_stalled": (
        "An operation does not end, or all are far too slow: requests do not wait for the "
        "directory any more."
    ),
    "added_log_dir_not_configured": "It was added at run time: put it into `log.dirs` too.",
    "known_log_dirs_not_written": "Which directories this broker has could not be noted.",
    # logs and replicas on disk
    "housekeeping_skipped": (
        "Retention or a checkpoint could not be done now; it is done next time."
    ),
    "log_dir_not_closed_cleanly": "Its logs will be scanned at the next start.",
    "replica_copy_not_removed": "A needless copy could not be removed.",
    "replica_copy_superseded": "Of two copies the better one is kept.",
    "replica_found_twice": "Two directories hold the same replica.",
    "superseded_copy_not_removed": ("The other one could not be set aside now; it is not served."),
    "asked_moves_unreadable": (
        "Notes of moves cannot be read; moves under way may have to be asked for again."
    ),
    "leftover_copy_not_removed": (
        "A half-built copy, or one marked as deleted, stays until the next start: its directory "
        "died."
    ),
    "deleted_replica_not_known": (
        "Whose it was, what is marked as deleted, cannot be read: it is removed like the rest, or "
        "stays until the next start if its disk does not answer."
    ),
    "future_copy_dropped": "A half-built copy is not wanted any more.",
    "future_copy_not_opened": (
        "The copy of a swap that a crash broke off cannot be opened; the replaced one serves on."
    ),
    "future_copy_not_removed": "It could not be removed.",
    "future_copy_not_resumed": "A move cannot continue with its copied files, and restarts.",
    "future_copy_resumed_later": "A step of the move still hangs, and is waited for.",
    "future_copy_of_no_use": "What it had copied is not the replica's any more.",
    "future_copy_unreadable": "The state of a future copy cannot be read; its move restarts.",
    "log_tail_truncated": ("What a crash left half written at a log's end was truncated."),
    "move_not_forgotten": "The note of a move that is over could not be removed.",
    "replica_not_loaded": "Its full directory had no space for what loading it writes.",
    "replica_set_aside_as_stray": (
        "Whose records these are is not known any more; they are kept, not served."
    ),
    "stray_not_marked": (
        "A stray is set aside without the note that says whose it is: its directory takes none yet."
    ),
    "swap_mended": "A swap of two copies that a crash broke off was completed.",
    "swap_not_mended": "It could not be; the replica waits for its disk.",
    "swap_not_undone": ("A swap that failed could not be taken back; the next start does it."),
    "undone_swap_settled": (
        "After a swap that was undone there were two copies: the one that had stayed is served."
    ),
    "unknown_names_in_log_dir": "These are none of the broker's files, and are left alone.",
    # the scrub
    "log_damage_found_by_scrub": (
        "Records on disk have gone bad; the replica is healed from others, where there are others."
    ),
    "log_scrub_began": "All cold segments of the directory are read and checked.",
    "log_scrub_completed": ("They all were; `damages` says how many places were bad."),
    "log_scrub_ended": ("The directory went offline before that."),
    "log_scrub_passed_over": "A segment was deleted, or moved away, while it was read.",
    "log_scrub_position_not_saved": "After a restart it will read some segments twice.",
    "log_scrub_put_off": "The directory has more urgent things to do.",
    "log_scrub_readings_differ": (
        "The disk gave two answers to one question: suspect its cable or memory."
    ),
}
