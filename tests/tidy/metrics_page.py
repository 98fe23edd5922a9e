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

`make docs` writes this page, and a test compares it with the figures in the code.

`metrics.snapshot.path` names a file that a daemon replaces every `metrics.snapshot.interval.ms` with one JSON object: a number for each name.
Names are Kafka's where Kafka has one; those that end in `PerSec` are counters since the daemon's start, whose rate is yours to take.
Counters begin at 0 with the daemon, those of a directory when it is opened.
Sizes are in bytes, times in milliseconds.
"""
#: Descriptions of the metrics, in the order of the page. The name of a directory's metric is the
#: middle part: ``LogDirectory<name>,logDirectory="/d1"``.
FIGURES: Final[Mapping[str, Mapping[str, str]]] = {
    "Of a broker": {
        "PartitionCount": "Replicas on this broker.",
        "LeaderCount": "Of those, leaders.",
        "UnderReplicatedPartitions": "Led here, with fewer in-sync replicas than replicas.",
        "UnderMinIsrPartitionCount": "Led here, with fewer than `min.insync.replicas`.",
        "OfflineReplicaCount": "On directories that are offline.",
        "BytesInPerSec": "Appended for producers.",
        "BytesOutPerSec": "Sent to consumers and followers.",
        "IsrShrinksPerSec": "Times that a follower left an in-sync set.",
        "IsrExpandsPerSec": "Times that one joined.",
        "NumIncrementalFetchSessions": "Fetch sessions of followers and consumers.",
        "NumIncrementalFetchPartitionsCached": "Partitions that they remember.",
        "IncrementalFetchSessionEvictionsPerSec": "Consumers' sessions that gave way to others.",
        "ReplicaFetcherCount": "Fetchers: one for each leading broker and directory that follows it.",
        "NumGroups": "Consumer groups that this broker coordinates, or keeps offsets of.",
        "NumConsumerGroups": "Those of them that speak the newer protocol (KIP-848).",
        "NumGroupMembers": "Members of all of them.",
        "NumOffsets": "Offsets that they have committed.",
        "NumGroupsEmpty": "Classic groups without members, those that only commit among them.",
        "NumGroupsPreparingRebalance": "Classic groups that wait for their members to join.",
        "NumGroupsCompletingRebalance": "Classic groups that wait for their leader's assignment.",
        "NumGroupsStable": "Classic groups whose members have their assignment.",
        "NumConsumerGroupsEmpty": "Groups of the newer protocol without members.",
        "NumConsumerGroupsAssigning": "Those whose assignment is older than they are.",
        "NumConsumerGroupsReconciling": "Those with members that do not have what they are to have.",
        "NumConsumerGroupsStable": "Those whose members have it.",
        "OffsetCommitsPerSec": "Offsets that groups have committed, and producers for them.",
        "OffsetExpirationsPerSec": "Offsets that were kept long enough.",
        "OffsetDeletionsPerSec": "Offsets that somebody deleted, or whose topic was.",
        "CompletedRebalancesPerSec": "Times that a classic group came to an assignment.",
        "ConsumerGroupRebalancesPerSec": "Times that a group of the newer protocol had to be "
        "assigned anew.",
        "NumTransactionalIds": "Transactional ids that this broker coordinates.",
        "NumOngoingTransactions": "Those of them with an open transaction.",
        "NumTransactionsAwaitingMarkers": "Those whose end is decided, and not written everywhere.",
        "TransactionsCommittedPerSec": "Transactions that were decided to be committed.",
        "TransactionsAbortedPerSec": "Those that were decided to be aborted.",
        "TransactionsTimedOutPerSec": "Of those, the ones that were open for too long.",
        "PartitionsWithLateTransactionsCount": "Replicas here with a transaction that has been open "
        "for five minutes longer than `transaction.max.timeout.ms`: it may hang.",
        "OfflineLogDirectoryCount": "Directories that are offline.",
        "ImpairedLogDirectoryCount": "Saturated or stalled.",
        "LogIndexCacheBytes": "Indexes of segments in memory (`log.index.cache.bytes`).",
        "OpenLogSegmentCount": "Open files of segments (`log.open.segments.max`).",
        "SaturatedLogDirectoryCount": "Full.",
        "StalledLogDirectoryCount": "Hung.",
        "SlowLogDirectoryCount": "Slow beside the broker's others.",
        "CordonedLogDirectoryCount": "Taking no new replicas.",
        "OldestUnacknowledgedLogDirectoryFailureMs": "For how long a dead directory has waited "
        "to be acknowledged by the controller; 0 if none does.",
        "QueuedReplicaToDirAssignments": "Replicas whose directory is not reported yet.",
        "RefusedReplicaToDirAssignments": "Reports of those that the controller refused.",
        "ReplicaAlterLogDirsPartitionCount": "Replicas that move between directories.",
        "ReplicaAlterLogDirsFailedPartitionsCount": "Moves that failed.",
        "ReplicaAlterLogDirsMaxLag": "Records that the move which lacks most lacks.",
        "ReplicaAlterLogDirsMaxGateMs": "Longest time that appends waited for a swap.",
        "ReplicaAlterLogDirsBytes": "Copied by moves.",
        "StorageTelemetrySentTotal": "Records sent to `__storage_telemetry`.",
        "StorageTelemetryDroppedTotal": "Records that could not be sent before the next round.",
        "GroupTelemetrySentTotal": "Records sent to `__group_telemetry`.",
        "GroupTelemetryDroppedTotal": "Records that could not be sent before the next round, or "
        "were beyond `group.telemetry.max.samples`.",
        "BackgroundJobFailures": "Bugs in chores, each of which cost that chore only.",
        "max-dirty-percent": "How much of the dirtiest compacted log is not compacted yet.",
        "cleaner-recopy-percent": "How much of what compaction read it wrote again.",
    },
    "Of a log directory": {
        "Offline": "1 if it is offline; then only this and the next three are there.",
        "Saturated": "1 if it is full.",
        "Stalled": "1 if it hangs.",
        "Cordoned": "1 if it takes no new replicas.",
        "TotalBytes": "Size of its file system.",
        "UsedBytes": "Used of it, the reserve included.",
        "UsableBytes": "Free for the broker; what the reserve holds is not.",
        "FreeInodes": "Files that its file system can still take.",
        "ReserveBytes": "Kept for the day when the disk is full.",
        "BackgroundJobFailures": "Bugs in chores of this directory.",
        "ReplicaCount": "Replicas in it.",
        "GrowthBytesPerSecond": "How fast its own logs grow.",
        "DiskGrowthBytesPerSecond": "How fast everything on its file system grows.",
        "SecondsUntilFull": "Estimate by the faster growth; absent while neither grows.",
        "LatencyMs": "Moving average of writes, flushes and checks.",
        "Slow": "1 if it is slow beside the broker's others.",
        "<name>Operations": "Operations that ended. `<name>` is `Read`, `Write`, `Flush`, `Probe` "
        "(the check that it still is the same disk) or `Other`.",
        "<name>Errors": "Those that failed.",
        "<name>Bytes": "What they were to write; of `Write`.",
        "<name>TimeMs": "What they took together.",
        '<name>LatencyMs,le="<limit>"': "Operations that took less than the limit, which is a "
        "power of two up to 32768, and `+Inf` for all.",
        "LastScrubMs": "When the last pass over all cold segments ended, since 1970 UTC.",
        "ScrubbedBytes": "Read and checked.",
        "ScrubbedSegments": "Read and checked.",
        "ScrubPasses": "Passes over all cold segments.",
        "ScrubDamagesFound": "Damaged stretches.",
        "ScrubReplicasRepaired": "Replicas that were whole again afterwards.",
        "ScrubIndexesMended": "Indexes that were built anew.",
    },
    "Of compaction in a log directory": {
        "uncleanable-partitions-count,<tag>": "Replicas whose log cannot be compacted.",
        "uncleanable-bytes,<tag>": "What they hold.",
    },
    "Of a controller": {
        "ActiveControllerCount": "1 on the controller that decides, 0 on the others.",
        "ActiveBrokerCount": "Brokers that serve.",
        "FencedBrokerCount": "Brokers that are registered and do not.",
        "ControlledShutdownBrokerCount": "Brokers that are stopping.",
        "SaturatedLogDirectoryCount": "Full directories of brokers that serve.",
        "StalledLogDirectoryCount": "Hung directories of brokers that serve.",
        "LastResortLeaderCount": "Leaders on an impaired directory, because nobody else can.",
        "OfflinePartitionsCount": "Partitions without a leader.",
        "PreferredReplicaImbalanceCount": "Partitions that another than the preferred replica leads.",
        "ReassigningPartitions": "Partitions that are being reassigned.",
        "GlobalTopicCount": "Topics.",
        "GlobalPartitionCount": "Partitions.",
        "LeaderChangeCount": "Changes of a partition's leader.",
        "UncleanLeaderElectionCount": "Of those, to a replica that may have lost records.",
        "ElectionFromEligibleLeaderReplicasPerSec": "Of those, to an eligible leader replica.",
        "TimedOutBrokerHeartbeatCount": "Heartbeats that could not be answered in time.",
        "NewActiveControllersCount": "Times that a controller became active.",
        "UnreplayableDecisionCount": "Decisions that were a bug, and not written.",
        "LastAppliedRecordOffset": "Where the state in memory is in the metadata log.",
        "LastCommittedRecordOffset": "Where the metadata log on disk is.",
    },
}
_TEMPLATES: Final = {
    "Of a log directory": 'LogDirectory{name},logDirectory="PATH"',
    "Of compaction in a log directory": "{name}",
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
        (title == "Of a controller", name) for title, names in FIGURES.items() for name in names
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
        lines += [f"## {title}", "", "| figure | what it is |", "|---|---|"]
        template = _TEMPLATES.get(title, "{name}")
        for name, meaning in figures.items():
            shown = template.format(name=name).replace("<tag>", 'logDirectory="PATH"')
            lines.append(f"| `{shown}` | {meaning} |")
        lines.append("")
    return "\n".join(lines)
