"""The claims of producers before the cluster is read; test_audit_job.py has the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.audit.audit_material import read_claims
from kraftjbod.spark.session.job import Job

# Partition, offset, count, producer, sequence.
LINES = (
    *((0, 0, 5, "a", 0), (0, 5, 5, "a", 5), (0, 10, 1, "b", 0), (0, 11, None, "a", 10)),
    # Sent again with the same offsets.
    *((1, 0, 5, "a", 0), (1, 5, 5, "a", 4)),
    *((2, 0, 5, "a", 0), (2, 4, 5, "a", 5)),
    *((3, 0, 5, None, None), (3, 0, 5, None, None)),
)


def test_read_claims_returns_topics_and_partitions_with_disorderly_producers(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = ("partition", "offset", "count", "producer", "sequence")
    found = [{"topic": "t", **dict(zip(names, line, strict=True))} for line in LINES]
    found.append({**found[0], "topic": "u"})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in found))
    job = Job(spark=spark, tables=str(tmp_path))
    claims = read_claims(job, str(path), " t, ")
    assert (claims.topics, claims.others) == (["t"], 1)
    assert claims.disorderly == {("t", 1), ("t", 2)}
    assert claims.lines.count() == len(LINES)
    assert read_claims(job, str(path), None).topics == ["t", "u"]


@pytest.mark.parametrize(
    ("lines", "topics", "says"),
    [
        ('{"topic": "t", "partition": 0}', None, "1 lines lack one of topic, partition, offset"),
        ("", None, "no topic to audit"),
        ("", " , ", "no topic to audit"),
    ],
)
def test_read_claims_of_invalid_lines_states_the_reason(
    spark: SparkSession, tmp_path: Path, lines: str, topics: str | None, says: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines)
    with pytest.raises(ConfigError, match=says):
        read_claims(Job(spark=spark, tables=str(tmp_path)), str(path), topics)
