"""Generates docs/metrics.md: all metrics, with the descriptions of this file.

The tests find the names in the source: literal names of counters and gauges, and names yielded by
the functions that publish metrics of objects with a limited lifetime.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from tests.tidy.sources import SourceFile, read_sources

_HEAD: Final = """# Metrics

`make docs` writes this page. A test compares it with the metrics in the code.

If `metrics.snapshot.path` is set, the daemon replaces that file every `metrics.snapshot.interval.ms`. The file is one JSON object with a number for each name.
A metric that Kafka also has keeps Kafka's name. A metric whose name ends in `PerSec` is a counter, not a rate.
Counters of a directory begin at 0 when the directory is opened, and other counters when the daemon starts.
Sizes are in bytes, times in milliseconds.
"""
#: Descriptions of the metrics, in the order of the page. The name of a directory's metric is the
#: middle part: ``LogDirectory<name>,logDirectory="/d1"``.
FIGURES: Final[Mapping[str, Mapping[str, str]]] = {
    "Metrics of a broker": {
        "PartitionCount": "Replicas on this broker.",
        "LeaderCount": "Leaders on this broker.",
        "UnderReplicatedPartitions": "Partitions led by this broker that have fewer in-sync replicas than replicas.",
        "UnderMinIsrPartitionCount": "Partitions led by this broker with fewer in-sync replicas than `min.insync.replicas`.",
        "OfflineReplicaCount": "Replicas in offline directories.",
        "BytesInPerSec": "Bytes of the batches that this broker appends as leader, for producers, groups and transactions.",
        "BytesOutPerSec": "Bytes sent to consumers and followers.",
        "IsrShrinksPerSec": "Removals from in-sync sets that this broker requested as leader and the controller "
        "accepted, one per change; the controller's own removals are not counted.",
        "IsrExpandsPerSec": "Additions to in-sync sets that this broker requested as leader and the controller "
        "accepted, one per change.",
        "NumIncrementalFetchSessions": "Fetch sessions of followers and consumers.",
        "NumIncrementalFetchPartitionsCached": "Partitions in the fetch sessions of followers and consumers.",
        "IncrementalFetchSessionEvictionsPerSec": "Fetch sessions of consumers that were closed to make space for new ones.",
        "ReplicaFetcherCount": "Fetchers of this broker. There is one for each pair of a leading broker and a local directory whose replicas follow that broker.",
        "NumGroups": "Groups that this broker coordinates, including groups that only have offsets.",
        "NumConsumerGroups": "Groups of the newer protocol (KIP-848).",
        "NumGroupMembers": "Members of all groups.",
        "NumOffsets": "Committed offsets of all groups.",
        "NumGroupsEmpty": "Classic groups without members, including groups that only have offsets.",
        "NumGroupsPreparingRebalance": "Classic groups that wait for their members to join.",
        "NumGroupsCompletingRebalance": "Classic groups that wait for their leader's assignment.",
        "NumGroupsStable": "Classic groups whose members have their assignment.",
        "NumConsumerGroupsEmpty": "Groups of the newer protocol without members.",
        "NumConsumerGroupsAssigning": "Groups of the newer protocol whose target assignment is older than the group epoch.",
        "NumConsumerGroupsReconciling": "Groups of the newer protocol with members that do not have their target assignment yet.",
        "NumConsumerGroupsStable": "Groups of the newer protocol whose members have their target assignment.",
        "OffsetCommitsPerSec": "Offsets committed by groups, and by producers in transactions.",
        "OffsetExpirationsPerSec": "Offsets that expired.",
        "OffsetDeletionsPerSec": "Offsets that were deleted by a request or with their topic.",
        "CompletedRebalancesPerSec": "Completed rebalances of classic groups.",
        "ConsumerGroupRebalancesPerSec": "New group epochs of groups of the newer protocol. Each of them triggers a target assignment.",
        "NumTransactionalIds": "Transactional ids that this broker coordinates.",
        "NumOngoingTransactions": "Transactional ids with an open transaction.",
        "NumTransactionsAwaitingMarkers": "Transactions whose end is decided and whose markers are not all written.",
        "TransactionsCommittedPerSec": "Committed transactions.",
        "TransactionsAbortedPerSec": "Aborted transactions.",
        "TransactionsTimedOutPerSec": "Transactions aborted because they exceeded their timeout.",
        "PartitionsWithLateTransactionsCount": "Replicas on this broker with a transaction that has been open "
        "for five minutes longer than `transaction.max.timeout.ms`. Such a transaction may hang.",
        "OfflineLogDirectoryCount": "Directories that are offline.",
        "ImpairedLogDirectoryCount": "Directories that are saturated or stalled.",
        "LogIndexCacheBytes": "Size of the segment indexes in memory (`log.index.cache.bytes`).",
        "OpenLogSegmentCount": "Segments whose files are open (`log.open.segments.max`).",
        "SaturatedLogDirectoryCount": "Directories whose disk is full.",
        "StalledLogDirectoryCount": "Directories whose disk hangs.",
        "SlowLogDirectoryCount": "Directories that are slow in comparison with the others.",
        "CordonedLogDirectoryCount": "Directories that accept no new replicas.",
        "OldestUnacknowledgedLogDirectoryFailureMs": "Age of the oldest failure of a directory that the "
        "controller has not acknowledged, measured from the first snapshot after the failure; 0 if there is none.",
        "QueuedReplicaToDirAssignments": "Replicas whose directory the controller has not acknowledged yet.",
        "RefusedReplicaToDirAssignments": "Reports of a replica's directory that the controller refused.",
        "ReplicaAlterLogDirsPartitionCount": "Replicas that move between directories.",
        "ReplicaAlterLogDirsFailedPartitionsCount": "Partitions whose last move on this broker failed.",
        "ReplicaAlterLogDirsMaxLag": "Largest number of records that one move still has to copy.",
        "ReplicaAlterLogDirsMaxGateMs": "Longest delay of appends by the last step of a move, since the broker started.",
        "ReplicaAlterLogDirsBytes": "Bytes copied by moves.",
        "StorageTelemetrySentTotal": "Records sent to `__storage_telemetry`.",
        "StorageTelemetryDroppedTotal": "Records for `__storage_telemetry` that could not be sent, for example because the topic did not exist.",
        "GroupTelemetrySentTotal": "Records sent to `__group_telemetry`.",
        "GroupTelemetryDroppedTotal": "Records for `__group_telemetry` that could not be sent, or "
        "were beyond `group.telemetry.max.samples`.",
        "AuditDroppedTotal": "Lines that could not be written to `audit.log.path`.",
        "BackgroundJobFailures": "Runs of background jobs that ended with a bug; the jobs are restarted.",
        'CertificateSecondsUntilExpiry,listener="<name>"': "Seconds until the certificate of a listener "
        "with TLS expires; negative afterwards.",
        "max-dirty-percent": "Largest share of not yet compacted bytes in a log, in percent, at the last check of the log's directory.",
        "cleaner-recopy-percent": "Share of the bytes read by compaction that it wrote again, in percent.",
    },
    "Metrics of a log directory": {
        "Offline": "1 if the directory is offline. Then only this and the next three metrics of this table exist.",
        "Saturated": "1 if its disk is full.",
        "Stalled": "1 if its disk hangs.",
        "Cordoned": "1 if the directory accepts no new replicas.",
        "TotalBytes": "Size of its file system.",
        "UsedBytes": "Total bytes minus usable bytes. The reserve file and the bytes that the file system keeps for root are included.",
        "UsableBytes": "Bytes free for the broker, without the reserve file.",
        "FreeInodes": "Number of files that its file system can still create.",
        "ReserveBytes": "Size of the reserve file, which is released when the disk is full.",
        "BackgroundJobFailures": "Runs of background jobs of this directory that ended with a bug.",
        "ReplicaCount": "Replicas in the directory.",
        "GrowthBytesPerSecond": "Growth rate of its logs.",
        "DiskGrowthBytesPerSecond": "Growth rate of all files on its file system.",
        "SecondsUntilFull": "Estimate from the larger of the two rates; absent if neither is positive.",
        "LatencyMs": "Moving average of the duration of writes, flushes and checks.",
        "Slow": "1 if it is slow in comparison with the broker's other directories.",
        "<name>Operations": "Operations that ended. `<name>` is `Read`, `Write`, `Flush`, `Probe` "
        "(the check that it still is the same disk) or `Other`.",
        "<name>Errors": "Operations that failed.",
        "<name>Bytes": "Bytes of appends. Only `Write` has a value above 0.",
        "<name>TimeMs": "Total duration of the operations.",
        '<name>LatencyMs,le="<limit>"': "Operations that took less than the limit: a power of "
        "two from 1 to 32768. The limit `+Inf` counts all operations.",
        "LastScrubMs": "Time since 1970 UTC at which the last scrub of all closed segments ended; -1 if none has ended.",
        "ScrubbedBytes": "Bytes that scrubs read and checked.",
        "ScrubbedSegments": "Segments that scrubs read and checked.",
        "ScrubPasses": "Completed scrubs.",
        "ScrubDamagesFound": "Damaged places that scrubs found.",
        "ScrubReplicasRepaired": "Damaged replicas that were repaired.",
        "ScrubIndexesMended": "Indexes that scrubs rebuilt.",
    },
    "Metrics of compaction in a log directory": {
        "uncleanable-partitions-count,<tag>": "Replicas whose log cannot be compacted.",
        "uncleanable-bytes,<tag>": "Size of the replicas whose log cannot be compacted.",
    },
    "Metrics of a controller": {
        "ActiveControllerCount": "1 on the active controller, 0 on the others.",
        "ActiveBrokerCount": "Brokers that are neither fenced nor in controlled shutdown.",
        "FencedBrokerCount": "Registered brokers that are fenced.",
        "ControlledShutdownBrokerCount": "Brokers that are in controlled shutdown and not fenced yet.",
        "SaturatedLogDirectoryCount": "Full directories of all registered brokers, as last reported.",
        "StalledLogDirectoryCount": "Hung directories of all registered brokers, as last reported.",
        "LastResortLeaderCount": "Leaders in an impaired directory, because no other replica can lead.",
        "OfflinePartitionsCount": "Partitions without a leader.",
        "PreferredReplicaImbalanceCount": "Partitions whose leader is not the preferred replica.",
        "ReassigningPartitions": "Partitions that are being reassigned.",
        "GlobalTopicCount": "Topics.",
        "GlobalPartitionCount": "Partitions.",
        "LeaderChangeCount": "Leader changes, including losses of the leader.",
        "UncleanLeaderElectionCount": "Leader changes to a replica that may have lost records.",
        "ElectionFromEligibleLeaderReplicasPerSec": "Leader changes to an eligible leader replica (KIP-966).",
        "TimedOutBrokerHeartbeatCount": "Brokers that were fenced because their session expired.",
        "NewActiveControllersCount": "Times that this controller became active.",
        "UnreplayableDecisionCount": "Decisions that the controller rejected before writing them, because of a bug.",
        "LastAppliedRecordOffset": "Offset of the last entry applied to the state in memory.",
        "LastCommittedRecordOffset": "Offset of the last committed entry.",
    },
}
_TEMPLATES: Final = {
    "Metrics of a log directory": 'LogDirectory{name},logDirectory="PATH"',
    "Metrics of compaction in a log directory": "{name}",
}


def figures_in_code() -> set[tuple[bool, str]]:
    """Return the metrics in the source: whether the controller has it, and the name."""
    return {
        (source.package == "controller", name)
        for source in read_sources().values()
        if "etrics" in source.text
        for name in _names_in(source)
    }


def figures_on_the_page() -> set[tuple[bool, str]]:
    return {
        (title == "Metrics of a controller", name)
        for title, names in FIGURES.items()
        for name in names
    }


def _names_in(source: SourceFile) -> Iterator[str]:
    publishes = ".gauges(" in source.text and source.path != "core/telemetry.py"
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func=function, args=[first, *_]) if _registers(function):
                for part in ast.walk(first):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value
            case ast.Yield(value=ast.Tuple(elts=[first, _])) if publishes:
                name = _template(first)
                if not name.startswith("LogDirectory"):
                    yield name


def _registers(function: ast.expr) -> bool:
    text = ast.unparse(function)
    return text == "gauge" or text.endswith(("metrics.gauge", "metrics.count"))


def _template(name: ast.expr) -> str:
    """Return a literal's text; an f-string's placeholders become ``<name>``."""
    match name:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_part, parts))
    raise AssertionError(ast.unparse(name))


def _part(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value):
            return f"<{ast.unparse(value)}>"
    raise AssertionError(ast.unparse(part))


def page() -> str:
    """Return docs/metrics.md."""
    lines = [_HEAD]
    for title, figures in FIGURES.items():
        lines += [f"## {title}", "", "| metric | meaning |", "|---|---|"]
        template = _TEMPLATES.get(title, "{name}")
        for name, meaning in figures.items():
            shown = template.format(name=name).replace("<tag>", 'logDirectory="PATH"')
            lines.append(f"| `{shown}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)
