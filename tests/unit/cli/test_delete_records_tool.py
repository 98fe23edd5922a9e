"""``kraftjbod-delete-records``, against a scripted broker behind a real listener."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.cli.delete_records_tool import OffsetFileError, main, parse_offsets
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from tests.faults.rig import batch
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker


def test_parse_offsets_accepts_kafkas_file_format() -> None:
    text = '{"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}'
    assert parse_offsets(text) == {TopicPartition("foo", 1): 1}
    # Kafka's tool does not require a version either.
    text = '{"partitions": [{"topic": "a", "partition": 0, "offset": -1}]}'
    assert parse_offsets(text) == {TopicPartition("a", 0): -1}


def entries(*changes: dict[str, Any]) -> str:
    good = {"topic": "a", "partition": 0, "offset": 5}
    return json.dumps({"version": 1, "partitions": [{**good, **change} for change in changes]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "The input string is not a valid JSON"),
        ("[]", "expected an object with 'partitions'"),
        ('{"version": 2, "partitions": []}', "Not supported version field value 2"),
        ('{"version": 1}', "Missing partitions field"),
        ('{"partitions": []}', "expected a list of at least one"),
        ('{"partitions": {}}', "expected a list of at least one"),
        ('{"partitions": [1]}', r"partitions\[0\]: expected an object"),
        (entries({}, {"partition": 1}, {}), "contains duplicate topic partitions: a-0$"),
        (entries({}, {"topic": ""}), r"partitions\[1\].topic: expected a name"),
        (entries({"partition": -1}), r"partitions\[0\].partition: expected a number >= 0"),
        (entries({"partition": True}), r"partition: expected a number"),
        (entries({"offset": -2}), r"offset: expected a number >= -1"),
        (entries({"offset": "5"}), r"offset: expected a number >= -1"),
    ],
)
def test_parse_offsets_rejects_malformed_entries_with_reason(text: str, why: str) -> None:
    with pytest.raises(OffsetFileError, match=why):
        parse_offsets(text)


async def _call(
    broker: MiniBroker, file: Path, text: str, *words: str
) -> tuple[int, list[str], str]:
    file.write_text(text)
    done = await invoke(
        main, "--bootstrap-server", broker.address, "--offset-json-file", str(file), *words
    )
    return done.exit_code, done.stdout.splitlines(), done.stderr


def _fill(broker: MiniBroker) -> None:
    topic = broker.create("a", partitions=2)
    for log in topic.logs:
        log += batch(9)


async def test_delete_records_prints_lines_of_kafkas_tool(tmp_path: Path) -> None:
    async with mini_broker() as broker:
        _fill(broker)
        reported = await _call(
            broker, tmp_path / "f.json", entries({}, {"partition": 1, "offset": -1})
        )
        assert broker.deletions == [("a", 0, 5), ("a", 1, -1)]
    assert reported == (
        0,
        [
            "Executing records delete operation",
            "Records delete operation completed:",
            "partition: a-0\tlow_watermark: 5",
            "partition: a-1\tlow_watermark: 9",
        ],
        "",
    )


async def test_delete_records_continues_after_refused_partition(tmp_path: Path) -> None:
    async with mini_broker() as broker:
        _fill(broker)
        text = entries({"offset": 10}, {"partition": 1})
        code, lines, _ = await _call(broker, tmp_path / "f.json", text)
        assert (code, lines[2:]) == (
            1,
            ["partition: a-0\terror: a-0: OFFSET_OUT_OF_RANGE", "partition: a-1\tlow_watermark: 5"],
        )
        code, lines, _ = await _call(broker, tmp_path / "f.json", text, "--format", "json")
        assert (code, json.loads("".join(lines))) == (
            1,
            {
                "version": 1,
                "partitions": [
                    {
                        "topic": "a",
                        "partition": 0,
                        "lowWatermark": None,
                        "error": "a-0: OFFSET_OUT_OF_RANGE",
                    },
                    {"topic": "a", "partition": 1, "lowWatermark": 5, "error": None},
                ],
            },
        )


async def test_delete_records_retries_retriable_errors(tmp_path: Path) -> None:
    async with mini_broker() as broker:
        _fill(broker)
        broker.fail_next["DeleteRecords"] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        broker.fail_next["Metadata"] = [ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE]
        code, lines, _ = await _call(broker, tmp_path / "f.json", entries({}))
        assert (code, lines[2:]) == (0, ["partition: a-0\tlow_watermark: 5"])
        assert len(broker.deletions) == 2


async def test_delete_records_reports_unreadable_file(tmp_path: Path) -> None:
    done = await invoke(
        main, "--bootstrap-server", "127.0.0.1:1", "--offset-json-file", str(tmp_path / "none")
    )
    assert done.exit_code == 1 and "error: cannot read" in done.stderr
