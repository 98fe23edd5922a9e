"""``ClientStatistics`` waits for librdkafka's own statistics at the end of a run."""

from __future__ import annotations

import confluent_kafka
import pytest

from kraftjbod.cli.perf.client_statistics import ClientStatistics


def test_client_statistics_print_waits_for_librdkafkas_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    statistics = ClientStatistics()
    # librdkafka emits statistics even if the address is unreachable.
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = confluent_kafka.Producer({**nowhere, **statistics.settings()})
    statistics.print(producer.poll)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("Metric Name")
    assert any(line.startswith("msg_cnt ") for line in lines)
