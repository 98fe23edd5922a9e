"""``kraftjbod-leader-election``, against a scripted broker behind a real listener."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kraftjbod.cli.cluster.leader_election_tool import LeaderElectionError, main, parse_partitions
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker


async def _call(broker: MiniBroker, *words: str) -> tuple[int, list[str], str]:
    done = await invoke(main, "--bootstrap-server", broker.address, *words)
    return done.exit_code, done.stdout.splitlines(), done.stderr


async def test_leader_election_prints_lines_of_kafkas_tool(tmp_path: Path) -> None:
    file = tmp_path / "wanted.json"
    file.write_text(
        '{"partitions": [{"topic": "t", "partition": 2}, {"topic": "t", "partition": 1},'
        ' {"topic": "t", "partition": 0}]}'
    )
    words = ("--election-type", "PREFERRED", "--path-to-json-file", str(file))
    async with mini_broker() as broker:
        code, lines, why = await _call(broker, *words)
        assert (code, why) == (1, "error: 1 replica(s) could not be elected\n")
        assert lines == [
            "Successfully completed leader election (PREFERRED) for partitions t-1",
            "Valid replica already elected for partitions t-0",
            "Error completing leader election (PREFERRED) for partition: t-2: no",
        ]
        _, (document,), _ = await _call(broker, *words, "--json")
        named = {"topic": "t", "partition": 2}
        assert json.loads(document)["failed"] == [{**named, "error": "no"}]
        one = await _call(broker, "--election-type", "unclean", "--topic", "t", "--partition", "1")
        every = await _call(broker, "--election-type", "unclean", "--all-topic-partitions")
        assert (
            one
            == every
            == (
                0,
                ["Successfully completed leader election (UNCLEAN) for partitions t-1"],
                "",
            )
        )
        assert broker.elections == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "One and only one of the following options is required"),
        (("--topic", "t", "--partition", "1", "--all-topic-partitions"), "One and only one"),
        (("--topic", "t"), "Missing required option(s): partition"),
        (("--all-topic-partitions", "--partition", "1"), "only allowed if topic is used"),
    ],
)
async def test_leader_election_requires_exactly_one_selection_of_partitions(
    words: tuple[str, ...], why: str
) -> None:
    done = await invoke(main, "--bootstrap-server", "h:1", "--election-type", "unclean", *words)
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Replica election data is empty"),
        ("{}", 'missing "partitions" field'),
        ('{"partitions": []}', "at least one"),
        ('{"partitions": [1]}', r"partitions\[0\]: expected an object"),
        ('{"partitions": [{"partition": 1}]}', "topic: expected a name"),
        ('{"partitions": [{"topic": "t", "partition": true}]}', "partition: expected a number"),
        (
            '{"partitions": [{"topic": "t", "partition": 1}, {"topic": "t", "partition": 1}]}',
            r"contains duplicate partitions: \[t-1\]",
        ),
    ],
)
def test_parse_partitions_rejects_malformed_and_duplicate_entries(text: str, why: str) -> None:
    with pytest.raises(LeaderElectionError, match=why):
        parse_partitions(text)


def test_parse_partitions_accepts_kafkas_file_format() -> None:
    text = '{"partitions": [{"topic": "foo", "partition": 1}], "version": 1}'
    assert parse_partitions(text) == [TopicPartition("foo", 1)]
