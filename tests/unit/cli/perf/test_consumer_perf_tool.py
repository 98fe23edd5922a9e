"""``kraftjbod-consumer-perf-test`` rejects wrong options; test_tools.py runs it on a real
cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kraftjbod.cli.perf.consumer_perf_tool import main

GIVEN = ["--bootstrap-server", "127.0.0.1:1"]
MISUSE = [
    (["--num-records", "1"], "--topic, --include"),
    (["--num-records", "1", "--topic", "t", "--include", "t"], "--topic, --include"),
    (["--topic", "t"], "--num-records, --messages"),
    (["--topic", "t", "--messages", "1", "--date-format", "GG"], "--date-format GG: GG is not"),
    (["--topic", "t", "--messages", "1", "--command-property", "a=1"], '"a"'),
    (
        ["--topic", "t", "--messages", "1", "--command-config", "a", "--consumer.config", "b"],
        "cannot be given together",
    ),
]


@pytest.mark.parametrize(("more", "why"), MISUSE)
def test_consumer_perf_test_rejects_wrong_options_with_reason(more: list[str], why: str) -> None:
    result = CliRunner().invoke(main, [*GIVEN, *more])
    assert result.exit_code != 0
    assert why in result.stderr
