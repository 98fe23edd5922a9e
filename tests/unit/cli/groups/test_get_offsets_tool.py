"""Which partitions are asked for, and which times there are."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from kraftjbod.cli.groups.get_offsets_tool import main, parse_numbers, parse_rule, parse_time
from kraftjbod.core.ids import TopicPartition


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("t", "t-0 t-1 t-2 t-3"),
        ("t:1", "t-1"),
        ("t:1-3", "t-1 t-2"),
        ("t:-2", "t-0 t-1"),
        ("t:2-", "t-2 t-3"),
        (":3", "t-3 u-3"),
        ("[tu]:0", "t-0 u-0"),
    ],
)
def test_rules_are_kafkas(text: str, taken: str) -> None:
    rule = parse_rule(text)
    there = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(4)]
    assert " ".join(str(one) for one in there if rule.takes(one)) == taken


@pytest.mark.parametrize("text", ["t:", "t:a", "t:1:2", "t:-", "(:1"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_rule(text)


def test_numbers_and_times() -> None:
    assert parse_numbers("0, 2") == {0, 2}
    assert [parse_time(text) for text in ("latest", "-2", "max-timestamp", "17")] == [
        -1,
        -2,
        -3,
        17,
    ]
    for parse, text in ((parse_numbers, "0,a"), (parse_time, "now")):
        with pytest.raises(click.UsageError):
            parse(text)


def test_flags_that_exclude_each_other() -> None:
    words = ["--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--topic-partitions", "t:0"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and "cannot be used with" in done.output
