"""``kraftjbod-producer-perf-test``: rejected options and generated payloads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from kraftjbod.cli.perf.producer_perf_tool import Payloads, main, read_payloads
from kraftjbod.core.errors import ConfigError

GIVEN = ["--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--num-records", "5"]
MISUSE = [
    ([], "Missing option '--throughput'"),
    (["--throughput", "-1"], "exactly one of --record-size"),
    (["--throughput", "-1", "--record-size", "1", "--payload-monotonic"], "exactly one of"),
    (["--throughput", "0", "--record-size", "1"], "--throughput 0 would send nothing"),
    (["--throughput", "-1", "--record-size", "1", "--warmup-records", "5"], "strictly fewer"),
    (
        ["--throughput", "-1", "--record-size", "1", "--command-property", "a=1", "b"],
        "'b' is not KEY=VALUE",
    ),
    (
        ["--throughput", "-1", "--record-size", "1", "--command-property", "a=1", "nobody.knows=b"],
        "a client's setting is wrong: No such configuration property",
    ),
]


@pytest.mark.parametrize(("more", "why"), MISUSE)
def test_producer_perf_test_rejects_wrong_options_with_reason(more: list[str], why: str) -> None:
    result = CliRunner().invoke(main, [*GIVEN, "--payload-delimiter", ";", *more])
    assert result.exit_code != 0
    assert why in result.stderr


def test_payloads_are_random_letters_file_entries_or_numbers(tmp_path: Path) -> None:
    letters = Payloads(record_bytes=1000).make(random.Random(0))(0)
    assert (len(letters), set(letters) <= set(range(65, 91))) == (1000, True)
    assert Payloads(record_bytes=1000).make(random.Random(0))(7) == letters
    assert Payloads().make(random.Random(0))(7) == b"7"
    file = tmp_path / "payloads"
    file.write_text("a;b;", encoding="utf-8")
    assert read_payloads(str(file), ";") == [b"a", b"b"]
    drawn = Payloads(of_file=[b"a", b"b"]).make(random.Random(0))
    assert {drawn(n) for n in range(50)} == {b"a", b"b"}
    file.write_text("")
    with pytest.raises(ConfigError):
        read_payloads(str(file), ";")
