"""Test of Kafka Streams with exactly_once_v2 through a kill and a disk failure."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS
from tests.clients.running import Running
from tests.clients.test_dying_disk import failed_disk, find_coordinator_directory

pytestmark = pytest.mark.timeout(900)

SEED: Final = 17
LINES: Final = 300
WORDS: Final = [f"word-{number}" for number in range(12)]
#: Enough for all sent words to be counted after an open transaction timed out.
COUNTED_S: Final = 180.0


@pytest.mark.trial("kafka-streams (Java)", "streams")
def test_streams_with_kill_and_failed_disk_counts_every_word_once(
    cluster: LocalCluster, run_java: Callable[..., Start], tmp_path: Path
) -> None:
    for topic in ("lines", "counts"):
        cluster.create_topic(topic, partitions=PARTITIONS)
    name, directory = find_coordinator_directory(cluster, "lines")
    start = run_java("WordCount", "-Xmx256m")
    lines = Lines(cluster)
    counts = Counts(cluster)
    running = start("count", "lines", "counts", name, tmp_path / "state")
    lines.send(LINES)
    counts.read_until(sum(lines.sent.values()) // 2, running)
    # The kill probably interrupts a transaction. The state store's directory is kept.
    running.kill()
    lines.send(LINES)
    running = start("count", "lines", "counts", name, tmp_path / "state")
    counts.read_until(sum(lines.sent.values()) * 3 // 4, running)
    with failed_disk(directory):
        lines.send(LINES)
        counts.read_until(sum(lines.sent.values()), running)
        running.end_input()
        running.wait()
    counts.check(lines.sent)
    assert not running.values("failed"), running.output_excerpt()
    cluster.wait_in_sync("counts")


class Lines:
    """A producer of random lines. ``sent`` counts the words."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.sent: Counter[str] = Counter()
        self._chooser = random.Random(SEED)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            words = self._chooser.choices(WORDS, k=self._chooser.randint(1, 8))
            self.sent.update(words)
            self._producer.produce("lines", " ".join(words), str(self._chooser.random()))
        assert self._producer.flush(60) == 0


class Counts:
    """A reader of the committed counts of each word, in order."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._found: dict[str, list[int]] = defaultdict(list)
        self._reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._reader.assign(
            [confluent_kafka.TopicPartition("counts", each, 0) for each in range(PARTITIONS)]
        )

    def read_until(self, total: int, running: Running) -> None:
        deadline_s = time.monotonic() + COUNTED_S
        while (found := sum(map(len, self._found.values()))) < total:
            message = self._reader.poll(0.5)
            if message is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                self._found[key.decode()].append(int(value))
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{found} of {total} counts\n{running.output_excerpt()}")

    def check(self, sent: Counter[str]) -> None:
        assert self._reader.poll(2) is None
        self._reader.close()
        wanted = {word: list(range(1, count + 1)) for word, count in sent.items()}
        assert dict(self._found) == wanted
