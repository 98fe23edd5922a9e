"""The proof finds what it looks for: each kind of wrong, and right."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.protocol.records import Record
from kraftjbod.tour.check import Findings, PartitionCheck, read_back
from kraftjbod.tour.source_lines import LineStream, SourceLine
from kraftjbod.tour.workload import Ack, PartitionLoad, Workload
from tests.unit.cli.mini_broker import mini_broker

STREAM = LineStream([SourceLine(place=f"f:{n}", text=b"%d" % n) for n in range(6)])


def check(records: list[Record], acked: int = 6, in_doubt: int = 0) -> Findings:
    load = PartitionLoad(0, STREAM)
    load.acks = [Ack(at_s=0.0, offset=0, count=acked)]
    load.acked, load.in_doubt = acked, in_doubt
    checking = PartitionCheck(load)
    for record in records:
        checking.feed(record)
    return checking.findings()


def stored() -> list[Record]:
    records = STREAM.records(0, 6, 0)
    return [replace(record, offset=offset) for offset, record in enumerate(records)]


def wrong(findings: Findings) -> dict[str, int]:
    names = ("lost", "twice", "out_of_order", "changed", "misplaced")
    return {name: getattr(findings, name) for name in names if getattr(findings, name)}


def test_all_there_is_good() -> None:
    findings = check(stored())
    assert findings.is_good
    assert (findings.acknowledged, findings.found) == (6, 6)


def test_a_missing_record_is_lost() -> None:
    assert wrong(check([r for r in stored() if r.offset != 3])) == {"lost": 1}


def test_a_repeated_record_is_there_twice() -> None:
    again = replace(stored()[5], offset=5)
    assert wrong(check([*stored(), again])) == {"twice": 1}


def test_swapped_records_are_out_of_order_and_misplaced() -> None:
    records = stored()
    records[2], records[3] = replace(records[3], offset=2), replace(records[2], offset=3)
    assert wrong(check(records)) == {"out_of_order": 1, "misplaced": 2}


def test_another_value_is_a_change_and_a_loss() -> None:
    records = stored()
    records[1] = replace(records[1], value=b"?")
    assert wrong(check(records)) == {"changed": 1, "lost": 1}
    foreign = replace(records[0], key=b"who")
    assert wrong(check([*stored(), foreign])) == {"changed": 1}


def test_records_in_doubt_may_be_there_or_not() -> None:
    assert check(stored(), acked=4, in_doubt=2).is_good
    assert check(stored()[:4], acked=4, in_doubt=2).is_good
    assert wrong(check(stored()[:3], acked=4, in_doubt=2)) == {"lost": 1}


async def test_a_topic_is_read_to_its_end() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        workload = Workload([STREAM, STREAM], max_s=60)
        workload.stop()
        await workload.run(broker.address, "t")
        counted: list[int] = []
        findings = await read_back(client, "t", workload.loads, counted.append)
        assert all(found.is_good for found in findings)
        assert sum(counted) == workload.acked == 12
