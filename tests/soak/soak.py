"""``make soak SECONDS=600 SEED=7``: inject random faults into a real cluster and find lost records.

Cluster: three controllers (one for every fourth seed) and three brokers with two disks each, on
ext4 on loop devices that lose unflushed bytes. Topics have three replicas and
``min.insync.replicas`` 2.

Load: an idempotent acks=all producer per partition, a consumer, transactional producers, and two
copiers that consume and produce in transactions.

Rounds of faults are drawn from the seed (plan.py) until the time is over. Then the soak reads all
records back. It compares them with the acknowledged ones (offset, content, order), the copies with
their originals, and the replicas with each other.

With ``--large GB`` the soak writes so many gigabytes in segments of 1 GiB and small batches before
the faults begin, and adds ListOffsets requests and deletions to the load (large_logs.py). A
directory that goes STALLED or OFFLINE without a fault on its broker is then a finding.

To repeat a failure, use the same seed. The interleaving depends on the machine, so that it may take
several runs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException

from kraftjbod.core.errors import KraftJbodError
from kraftjbod.testing.local_cluster import ClusterTimeoutError, LocalCluster
from tests.integration.checker import Load, judge
from tests.integration.live_consumer import LiveConsumer
from tests.sim.search.applications.transaction_ledger import Outcome
from tests.soak import large_logs
from tests.soak.copiers import Copiers, Wait
from tests.soak.large_logs import Fill, LogQueries, Struck, unexplained_states
from tests.soak.plan import Kind, Round, plan
from tests.soak.replicas import differing_replicas
from tests.soak.strikes import BACK_S, Striker
from tests.soak.transactions import Transactions

TOPIC: Final = "soak"
TRANSACTIONS_TOPIC: Final = "soak-transactions"
COPIES_TOPIC: Final = "soak-copies"
BROKERS: Final = 3
DIRS: Final = 2
PARTITIONS: Final = 12
#: Few partitions, so that the markers of copiers do not fill the small disks.
COPIES_PARTITIONS: Final = 4
#: Size of each disk: one disk may have to hold all records of the run while the other is replaced.
DISK_BYTES: Final = 192 * 1024 * 1024
DISK_BYTES_PER_S: Final = 256 * 1024
#: Records that each partition must acknowledge between two rounds.
_RECORDS_BETWEEN: Final = 20
#: Pause of a producer between records, about a hundred a second and partition: the logs are read
#: back at the end.
_PAUSE_S: Final = 0.05
_JUST_BEFORE_S: Final = 0.2
_POLL_S: Final = 0.05
_MEND_EVERY_S: Final = 15.0
CONFIG: Final = {
    "log.dir.io.timeout.ms": "10000",
    # Small, so that segments roll and a move copies several of them.
    "log.segment.bytes": str(512 * 1024),
}
#: With large logs the settings are the defaults, except that topics are not created automatically:
#: a producer's metadata request for its deleted topic would recreate the topic with one replica.
LARGE_CONFIG: Final = {
    # LocalCluster's own value is 5 s, less than a hang that counts as harmless in plan.py.
    "log.dir.io.timeout.ms": "30000",
    "log.segment.bytes": str(1024 * 1024 * 1024),
    "auto.create.topics.enable": "false",
}
_REPLICATION_FACTOR: Final = 3


@dataclass(kw_only=True)
class Report:
    """Result of a soak. The soak passed if ``findings`` is empty."""

    seed: int
    rounds: int = 0
    acked: int = 0
    read: int = 0
    #: Number of transactions by outcome.
    transactions: Counter[Outcome] = field(default_factory=Counter)
    #: Transactions of the copiers.
    commits: int = 0
    hung: int = 0
    longest_wait: Wait = field(default_factory=Wait)
    strikes: Counter[Kind] = field(default_factory=Counter)
    #: Number of directories that went OFFLINE and daemons that ended without a fault on them.
    unstruck: int = 0
    #: The longest time without an acknowledgement in each round, by the round's kinds of faults.
    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    findings: list[str] = field(default_factory=list)
    #: Periods in which faults affected brokers.
    struck: list[Struck] = field(default_factory=list)
    #: Numbers of ListOffsets and delete requests on large logs, by result.
    queries: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        found = [
            f"seed {self.seed}: {self.rounds} rounds, {sum(self.strikes.values())} strikes, "
            f"{self.acked} records acknowledged, {self.read} read, {len(self.findings)} findings",
            "transactions: " + ", ".join(f"{n} {how}" for how, n in self.transactions.items()),
            f"copiers: {self.commits} transactions, longest time without one: {self.longest_wait}; "
            f"{self.hung} producers whose client hung",
            "strikes: " + ", ".join(sorted(f"{kind} {n}" for kind, n in self.strikes.items())),
            f"directories that hung and daemons that ended beside the strikes: {self.unstruck}",
            "on large logs: "
            + (", ".join(f"{n} {what}" for what, n in self.queries.items()) or "-"),
            "longest time without an acknowledgement, by what struck:",
        ]
        found += [
            f"  {max(gaps):7.2f} s worst, {sorted(gaps)[len(gaps) // 2]:7.2f} s median, "
            f"{len(gaps):3} x {kinds}"
            for kinds, gaps in sorted(self.gaps_s.items())
        ]
        if self.findings:
            found += ["FOUND:", *(f"  {finding}" for finding in self.findings[:40])]
            found.append(f"repeat it: make soak SECONDS=... SEED={self.seed}")
        return found


def soak(
    seed: int, seconds: float, *, large_gb: float = 0, report_line: Callable[[str], None] = print
) -> Report:
    """Run rounds of faults for about ``seconds``. The cluster's files are kept after a finding.

    :param large_gb: total log size on all disks before the faults begin; 0 for no large logs.
    """
    report = Report(seed=seed)
    cluster = LocalCluster(
        controllers=1 if seed % 4 == 0 else 3,
        brokers=BROKERS,
        dirs=DIRS,
        disk_bytes=disk_bytes(seconds, large_gb),
        config=LARGE_CONFIG if large_gb else CONFIG,
    )
    cluster.start()
    try:
        if large_gb:
            _soak_large(cluster, report, seconds, large_gb, report_line)
        else:
            _soak(cluster, report, seconds, report_line)
        if report.findings:
            report_line(cluster.last_words())
            report_line(f"the daemons' files are in {cluster.run_dir}")
    finally:
        cluster.close(keep=bool(report.findings) or sys.exc_info()[0] is not None)
    return report


def disk_bytes(seconds: float, large_gb: float) -> int:
    """Return the size of each disk. One disk can hold all replicas of its broker."""
    of_broker = int(large_gb * 1e9 / _REPLICATION_FACTOR)
    return DISK_BYTES + int(seconds) * DISK_BYTES_PER_S + of_broker + of_broker // 4


def _soak_large(
    cluster: LocalCluster,
    report: Report,
    seconds: float,
    large_gb: float,
    report_line: Callable[[str], None],
) -> None:
    """Fill large logs, then run the soak with additional queries and deletions."""
    cluster.create_topic(
        large_logs.TOPIC,
        partitions=large_logs.PARTITIONS,
        replication_factor=_REPLICATION_FACTOR,
        config={"min.insync.replicas": "2"},
    )
    fill = Fill(cluster.bootstrap_servers)
    fill.write(int(large_gb * 1e9) // _REPLICATION_FACTOR, report_line)
    with LogQueries(cluster.bootstrap_servers, fill, report.seed) as queries:
        _soak(cluster, report, seconds, report_line, fill)
    report.queries = queries.counts
    report.findings += queries.findings
    events = {broker.id: broker.events() for broker in cluster.brokers}
    report.findings += unexplained_states(events, report.struck)


def _soak(
    cluster: LocalCluster,
    report: Report,
    seconds: float,
    report_line: Callable[[str], None],
    fill: Fill | None = None,
) -> None:
    for topic, partitions in (
        (TOPIC, PARTITIONS),
        (TRANSACTIONS_TOPIC, PARTITIONS),
        (COPIES_TOPIC, COPIES_PARTITIONS),
    ):
        cluster.create_topic(
            topic,
            partitions=partitions,
            replication_factor=3,
            config={"min.insync.replicas": "2"},
        )
    striker = Striker(cluster, TOPIC, PARTITIONS, report.seed)
    bootstrap = cluster.bootstrap_servers
    with (
        Load(bootstrap, TOPIC, PARTITIONS, pause_s=_PAUSE_S) as load,
        LiveConsumer(bootstrap, TOPIC, PARTITIONS) as consumer,
        Transactions(bootstrap, TRANSACTIONS_TOPIC, PARTITIONS, report.seed) as transactions,
        Copiers(
            bootstrap,
            source=TRANSACTIONS_TOPIC,
            source_partitions=PARTITIONS,
            target=COPIES_TOPIC,
            target_partitions=COPIES_PARTITIONS,
        ) as copiers,
    ):
        ends = time.monotonic() + seconds
        for strikes in plan(report.seed, brokers=BROKERS, dirs=DIRS):
            if time.monotonic() > ends or report.findings:
                break
            _round(cluster, load, striker, strikes, report, report_line)
        try:
            load.stop(BACK_S)
            report.findings += consumer.finish(load)
            report.findings += transactions.finish()
            report.findings += copiers.finish()
        except (AssertionError, KafkaException) as e:
            report.findings.append(str(e))
        report.commits, report.longest_wait = copiers.commits, copiers.longest_wait
        report.hung = copiers.hung
    report.acked = load.acked
    report.transactions = transactions.outcomes
    verdict = judge(bootstrap, TOPIC, load)
    report.read = verdict.records_read
    report.findings += verdict.findings
    if fill is not None:
        report.findings += fill.findings()
    report.findings += [
        f"{daemon.files.name} printed a traceback: {daemon.files.telemetry_path}"
        for daemon in cluster.processes.daemons
        if "Traceback (most recent call last)" in daemon.files.telemetry_path.read_text()
    ]
    for broker in cluster.brokers:
        broker.stop()
    paths = [one.path for broker in cluster.brokers for one in broker.dirs]
    report.findings += differing_replicas(paths, TOPIC, PARTITIONS)
    if fill is not None:
        report.findings += differing_replicas(paths, large_logs.TOPIC, large_logs.PARTITIONS)


def _round(
    cluster: LocalCluster,
    load: Load,
    striker: Striker,
    strikes: Round,
    report: Report,
    report_line: Callable[[str], None],
) -> None:
    report.rounds += 1
    report.strikes.update(strike.kind for strike in strikes)
    report_line(f"round {report.rounds}: {'; '.join(map(str, strikes))}")
    began_s, began_wall_s = time.monotonic(), time.time()
    report.findings += striker.play(strikes)
    mended_s = time.monotonic()
    before = load.acked_by_partition()
    try:
        cluster.wait(
            "records of every partition to be acknowledged",
            lambda: load.flowed_since(before, _RECORDS_BETWEEN),
            timeout_s=BACK_S,
        )
        report.unstruck += _wait_in_sync(cluster, striker)
    except (KraftJbodError, KafkaException) as e:
        report.findings += [str(e), load.explain()]
    hit = frozenset(one.broker for one in strikes if one.kind.strikes_a_broker)
    report.struck.append(Struck(hit, began_wall_s, time.time()))
    gap_s, partition = _longest_gap_s(load, began_s - _JUST_BEFORE_S, time.monotonic())
    report.gaps_s[" + ".join(str(strike.kind) for strike in strikes)].append(gap_s)
    report_line(
        f"  {mended_s - began_s:.1f} s to mend, {time.monotonic() - mended_s:.1f} s to be in sync, "
        f"longest gap {gap_s:.2f} s ({TOPIC}-{partition}), {load.acked} acknowledged"
    )


def _wait_in_sync(cluster: LocalCluster, striker: Striker) -> int:
    """Wait until every replica is in sync, and mend what breaks meanwhile; return how much did.

    :raises ClusterTimeoutError: that takes longer than ``BACK_S``.
    """
    deadline, unstruck = time.monotonic() + BACK_S, 0
    while True:
        try:
            cluster.wait_in_sync(TOPIC, timeout_s=_MEND_EVERY_S)
        except ClusterTimeoutError:
            if time.monotonic() > deadline:
                raise
        else:
            return unstruck
        # A broker that does not answer is asked again after the next wait.
        with contextlib.suppress(KraftJbodError):
            unstruck += striker.mend_unstruck()


def _longest_gap_s(load: Load, since_s: float, until_s: float) -> tuple[float, int]:
    """Return the longest gap between acknowledgements in this period, and its partition.

    :param since_s: begin (monotonic); a gap that began before is counted from here.
    """
    longest = 0.0, 0
    for part in load.partitions:
        times = [since_s]
        for ack in reversed(part.acks):
            if ack.at_s < since_s:
                break
            times.insert(1, ack.at_s)
        times.append(until_s)
        longest = max(longest, *((b - a, part.partition) for a, b in itertools.pairwise(times)))
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--large", type=float, default=0, metavar="GB")
    asked = parser.parse_args()
    # Both signals raise KeyboardInterrupt, so that daemons, mounts and loop devices are removed. A
    # background process would ignore SIGINT otherwise.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    began_s = time.monotonic()

    def report_line(line: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {line}", flush=True)

    report = soak(asked.seed, asked.seconds, large_gb=asked.large, report_line=report_line)
    print("\n".join(report.lines()), flush=True)
    sys.exit(1 if report.findings else 0)


if __name__ == "__main__":
    main()
