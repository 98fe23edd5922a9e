"""JSON files of ``kraftjbod-reassign-partitions``: parsing, refusals and output."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
    parse_broker_list,
    parse_reassignment,
    parse_topics,
)
from kraftjbod.core.ids import DirectoryId, TopicPartition

FOO_0, FOO_1, BAR_0 = (
    TopicPartition("foo", 0),
    TopicPartition("foo", 1),
    TopicPartition("bar", 0),
)
DIRECTORY = DirectoryId(bytes(range(16)))


def document(**entry: object) -> str:
    whole = {"topic": "foo", "partition": 0, "replicas": [1, 2], **entry}
    return json.dumps({"version": 1, "partitions": [whole]})


def test_parse_reassignment_reads_brokers_and_directories() -> None:
    plan = parse_reassignment(
        '{"version":1,"partitions":['
        '{"topic":"foo","partition":0,"replicas":[1,2],"log_dirs":["any","/disk2/"]},'
        f'{{"topic":"foo","partition":1,"replicas":[3],"log_dirs":["dirid:{DIRECTORY}"]}},'
        '{"topic":"bar","partition":0,"replicas":[2]}]}'
    )
    assert plan.replicas == {FOO_0: (1, 2), FOO_1: (3,), BAR_0: (2,)}
    assert plan.log_dirs == {
        Replica(2, "foo", 0): "/disk2",
        Replica(3, "foo", 1): f"dirid:{DIRECTORY}",
    }
    assert plan.topics == ["bar", "foo"]
    assert plan.brokers == [1, 2, 3]
    assert plan.dirs_of(FOO_0) == ["any", "/disk2"]


def test_parse_reassignment_and_topics_accept_missing_version() -> None:
    bare = '{"partitions":[{"topic":"foo","partition":0,"replicas":[1]}]}'
    assert parse_reassignment(bare).replicas == {FOO_0: (1,)}
    assert parse_topics('{"topics":[{"topic":"foo"}]}') == ["foo"]


def test_reassignment_plan_as_json_is_kafkas_format() -> None:
    plan = ReassignmentPlan(
        replicas={FOO_1: (3,), FOO_0: (1, 2)}, log_dirs={Replica(2, "foo", 0): "/disk2"}
    )
    assert plan.as_json() == (
        '{"version":1,"partitions":['
        '{"topic":"foo","partition":0,"replicas":[1,2],"log_dirs":["any","/disk2"]},'
        '{"topic":"foo","partition":1,"replicas":[3],"log_dirs":["any"]}]}'
    )
    assert parse_reassignment(plan.as_json()) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "The input string is not a valid JSON: "),
        ("[]", "expected an object with 'partitions', found []"),
        ('{"version":2,"partitions":[]}', "Not supported version field value 2"),
        ('{"partitions":7}', "partitions: expected a list, found 7"),
        ('{"partitions":[7]}', "partitions[0]: expected an object, found 7"),
        ('{"version":1}', "Partition reassignment list cannot be empty"),
        ('{"partitions":[{"partition":0}]}', "partitions[0]: 'topic' is missing"),
        (document(topic=3), "partitions[0].topic: expected a name, found 3"),
        (document(topic=""), 'partitions[0].topic: expected a name, found ""'),
        (document(partition=-1), "partitions[0].partition: expected a number >= 0, found -1"),
        (document(partition=True), "partitions[0].partition: expected a number >= 0, found true"),
        (document(replicas="1,2"), 'partitions[0].replicas: expected a list, found "1,2"'),
        (
            document(replicas=[1, "2"]),
            'partitions[0].replicas[1]: expected a number >= 0, found "2"',
        ),
        (document(replicas=[]), "Partition replica list cannot be empty: foo-0"),
        (
            document(replicas=[1, 2, 1]),
            "Partition replica lists may not contain duplicate entries:"
            " foo-0 contains multiple entries for 1",
        ),
        (
            document(log_dirs=["any"]),
            "Size of replicas list [1, 2] is different from size of log dirs list [any]"
            " for partition foo-0",
        ),
        (
            document(log_dirs=["any", "disk2"]),
            "partitions[0].log_dirs[1]: 'disk2' is neither 'any' nor an absolute path"
            " nor dirid:<id>",
        ),
        (
            document(log_dirs=["dirid:x", "any"]),
            "partitions[0].log_dirs[0]: 'x' is not a uuid: expected 22 characters",
        ),
    ],
)
def test_parse_reassignment_of_malformed_json_states_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ReassignmentError) as refused:
        parse_reassignment(text)
    assert str(refused.value).startswith(complaint)


def test_parse_reassignment_rejects_duplicate_partition() -> None:
    entry = {"topic": "foo", "partition": 0, "replicas": [1]}
    with pytest.raises(ReassignmentError) as refused:
        parse_reassignment(json.dumps({"partitions": [entry, entry]}))
    assert str(refused.value) == (
        "Partition reassignment contains duplicate topic partitions: foo-0"
    )


def test_parse_topics_and_broker_list_reject_duplicates_and_malformed_input() -> None:
    assert parse_topics('{"topics":[{"topic":"foo"},{"topic":"bar"}],"version":1}') == [
        "foo",
        "bar",
    ]
    assert parse_broker_list("1, 2,3") == [1, 2, 3]
    for text, complaint in {
        '{"topics":[]}': "List of topics to reassign cannot be empty",
        '{"topics":[{"topic":"a"},{"topic":"a"}]}': (
            r"List of topics to reassign contains duplicate entries: \[a\]"
        ),
        '{"topics":["foo"]}': r"topics\[0\]: expected an object",
    }.items():
        with pytest.raises(ReassignmentError, match=complaint):
            parse_topics(text)
    with pytest.raises(ReassignmentError, match=r"Broker list contains duplicate entries: \[1\]"):
        parse_broker_list("1,2,1")
    with pytest.raises(ReassignmentError, match="Broker list '1,': '' is not a broker id"):
        parse_broker_list("1,")


def test_replicas_sort_by_broker_and_print_it_last() -> None:
    replicas = [Replica(2, "foo", 0), Replica(1, "foo", 1), Replica(1, "bar", 5)]
    assert list(map(str, sorted(replicas))) == ["bar-5-1", "foo-1-1", "foo-0-2"]
