"""``kraftjbod-get-offsets``: partition rules, times and output."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from kraftjbod.cli.groups.get_offsets_tool import main, parse_numbers, parse_rule, parse_time
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import invoke, mini_broker


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
def test_parse_rule_selects_partitions_as_kafka_does(text: str, taken: str) -> None:
    rule = parse_rule(text)
    there = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(4)]
    assert " ".join(str(one) for one in there if rule.takes(one)) == taken


@pytest.mark.parametrize("text", ["t:", "t:a", "t:1:2", "t:-", "(:1"])
def test_parse_rule_rejects_malformed_rules(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_rule(text)


def test_parse_numbers_and_times_accept_kafkas_names() -> None:
    assert parse_numbers("0, 2") == {0, 2}
    words = ("latest", "-2", "max-timestamp", "earliest-local", "latest-tiered", "17")
    assert [parse_time(text) for text in words] == [-1, -2, -3, -4, -5, 17]
    assert parse_time("earliest-pending-upload") == -6
    for parse, text in ((parse_numbers, "0,a"), (parse_time, "now")):
        with pytest.raises(click.UsageError):
            parse(text)


def test_get_offsets_rejects_topic_together_with_topic_partitions() -> None:
    words = ["--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--topic-partitions", "t:0"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and "cannot be used with" in done.output


async def test_get_offsets_json_includes_partitions_with_errors() -> None:
    async with mini_broker() as broker:
        broker.create("t", partitions=2)
        broker.fail_next["ListOffsets"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        words = ("--bootstrap-server", broker.address, "--json", "--topic")
        done = await invoke(main, *words, "t")
        nothing = await invoke(main, *words, "u")
    refused, answered = json.loads(done.stdout)["partitions"]
    assert (refused["partition"], refused["offset"]) == (0, None)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused["error"]
    assert answered == {"topic": "t", "partition": 1, "offset": 0, "error": None}
    assert nothing.exit_code == 1
    assert json.loads(nothing.stdout)["error"].startswith("Could not match any")
    assert nothing.stderr.startswith("error: Could not match any")
