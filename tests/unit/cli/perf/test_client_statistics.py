"""The figures of librdkafka at the end of a run, from the library itself."""

from __future__ import annotations

import confluent_kafka
import pytest

from kraftjbod.cli.perf.client_statistics import ClientStatistics


def test_the_library_s_own_figures_are_waited_for_and_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    statistics = ClientStatistics()
    # Nobody listens there; it counts all the same.
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = confluent_kafka.Producer({**nowhere, **statistics.settings()})
    statistics.print(producer.poll)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("Metric Name")
    assert any(line.startswith("msg_cnt ") for line in lines)
