from __future__ import annotations

from collections.abc import Callable

import pytest

from kraftjbod.broker.apis.record_deletion_apis import RecordDeletionApis
from kraftjbod.controller.topic_control import TopicControlManager
from kraftjbod.metadata.registrations import TopicRegistration
from kraftjbod.protocol.rpc_messages import TopicRef
from kraftjbod.storage.manager.housekeeping import Housekeeping
from tests.sim.search.applications import fleeting as fleeting_application
from tests.sim.search.applications.chosen import Kind
from tests.sim.search.applications.fleeting import TOPIC, Fleeting
from tests.sim.search.applications.lives import live
from tests.sim.search.faults.schedule import Kind as FaultKind


@pytest.fixture(autouse=True)
def topics_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In some seeds the first topic stays; these tests need topics that are deleted."""
    monkeypatch.setattr(fleeting_application, "_LASTING", 0.0)


Break = Callable[[pytest.MonkeyPatch], None]


def test_recreated_topics_during_broker_and_disk_failures_break_no_invariant() -> None:
    fleeting, findings = live(Kind.FLEETING, [FaultKind.KILL, FaultKind.EIO])
    assert findings == []
    assert isinstance(fleeting, Fleeting)
    assert fleeting.played["make"] > 2
    steps = {"make", "grow", "delete", "delete again", "delete records"}
    assert set(fleeting.played) == steps


def _acknowledge_and_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_at(*arguments: int) -> int:
        return max(0, arguments[2])

    monkeypatch.setattr(RecordDeletionApis, "_start_at", start_at)


def _delete_topic_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    find = TopicControlManager._find_topic

    def find_by_name(self: TopicControlManager, ref: TopicRef) -> TopicRegistration:
        return self._state.topic(TOPIC) or find(self, ref)

    monkeypatch.setattr(TopicControlManager, "_find_topic", find_by_name)


def _leave_it_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Housekeeping, "purge_replica", lambda *_: None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "finding_part"),
    [
        (_acknowledge_and_do_nothing, "and was acknowledged to at"),
        (_delete_topic_by_name, "no client deleted it, and it is gone"),
        (_leave_it_on_the_disk, "is of a topic that is gone"),
    ],
)
def test_defect_of_topic_deletion_is_found(
    broken: Break, finding_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    _, findings = live(Kind.FLEETING)
    assert any(finding_part in finding for finding in findings), findings
