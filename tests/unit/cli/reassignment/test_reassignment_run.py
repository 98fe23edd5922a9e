"""Actions of ``kraftjbod-reassign-partitions`` against a scripted broker: Kafka's exact lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.reassignment import reassignment_run as actions
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.cli.reassignment.reassignment_run import ExecuteOptions, RefusedError
from kraftjbod.cli.terminal.command import Answer
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import BROKER_ID
from tests.unit.cli.reassignment.moving_broker import DIRS, MovingBroker, moving_broker

FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
ROLLBACK = (
    '{"version":1,"partitions":[{"topic":"foo","partition":0,"replicas":[7,8],'
    '"log_dirs":["/d1","any"]}]}'
)


def plan(
    *partitions: TopicPartition, to: str | None = None, broker: int = BROKER_ID
) -> ReassignmentPlan:
    return ReassignmentPlan(
        replicas=dict.fromkeys(partitions or (FOO_0,), (broker,)),
        log_dirs={Replica(broker, *p): to for p in partitions or (FOO_0,)} if to else {},
    )


def options(
    timeout_ms: int = 10_000,
    *,
    throttle: int | None = None,
    mover_throttle: int | None = None,
    is_additional: bool = False,
) -> ExecuteOptions:
    return ExecuteOptions(
        timeout_ms=timeout_ms,
        throttle=throttle,
        mover_throttle=mover_throttle,
        is_additional=is_additional,
    )


Said = Callable[[], list[str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: capsys.readouterr().out.splitlines()


async def test_execute_starts_directory_move_with_kafkas_lines(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.execute(client, Answer(), plan(to="/d2"), options())
        assert said() == [
            "Current partition replica assignment",
            "",
            ROLLBACK,
            "",
            "Save this to use as the --reassignment-json-file option during rollback",
            "Successfully started partition reassignment for foo-0",
            "Successfully started moving log directory to /d2 for replica foo-0 with broker 7",
        ]
        assert broker.future == {("foo", 0): "/d2"}


async def test_execute_prints_rollback_plan_with_actual_directories(said: Said) -> None:
    """KAFKA-19582: with `any` in that file, a rollback would not restore the directories."""
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo", log_dir="/d2")
        await actions.execute(client, Answer(), plan(), options())
        assert ROLLBACK.replace("/d1", "/d2") in said()


async def test_execute_accepts_directory_id_as_target(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.execute(client, Answer(), plan(to=f"dirid:{DIRS['/d2']}"), options())
        assert broker.future == {("foo", 0): "/d2"}
        assert said()[-1].startswith("Successfully started moving log directory to /d2")


async def test_execute_sends_target_directory_of_new_replica_with_the_reassignment() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.replicas = (8,)
        await actions.execute(client, Answer(), plan(to="/d2"), options())
        assert broker.reassigned["foo", 0].target_directories == [f"dirid:{DIRS['/d2']}"]


async def test_execute_moves_existing_replica_by_alter_replica_log_dirs() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.execute(client, Answer(), plan(to="/d2"), options())
        assert broker.reassigned["foo", 0].target_directories == ["any"]
        assert broker.future == {("foo", 0): "/d2"}


async def test_execute_on_kafka_cluster_sets_directory_after_the_reassignment() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.replicas, broker.gives_ids = (8,), False
        await actions.execute(client, Answer(), plan(to="/d2"), options())
        assert broker.reassigned["foo", 0].target_directories == ["any"]
        assert broker.future == {("foo", 0): "/d2"}


async def test_execute_retries_while_replica_is_not_available(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.REPLICA_NOT_AVAILABLE] * 2
        await actions.execute(client, Answer(), plan(to="/d2"), options())
        assert said()[-1].startswith("Successfully started moving log directory")
        assert broker.asked.count("AlterReplicaLogDirs") == 3


@pytest.mark.parametrize(("partitions", "s"), [((FOO_0,), ""), ((FOO_0, FOO_1), "s")])
async def test_execute_directory_move_times_out_with_kafkas_message(
    partitions: tuple[TopicPartition, ...], s: str
) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo", 2)
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.REPLICA_NOT_AVAILABLE]
        with pytest.raises(RefusedError) as refused:
            await actions.execute(
                client, Answer(), plan(*partitions, to="/d2"), options(timeout_ms=0)
            )
        assert str(refused.value) == (
            f"Timed out before log directory move{s} could be started for: "
            + ",".join(f"{partition}-7" for partition in partitions)
        )


async def refuses(
    broker: MovingBroker, wanted: ReassignmentPlan, error: type[Exception], complaint: str
) -> None:
    """Assert that ``execute`` raises ``error`` with ``complaint`` before any request changes the
    cluster."""
    async with ClusterClient(broker.address) as client:
        with pytest.raises(error, match=complaint):
            await actions.execute(client, Answer(), wanted, options(throttle=5, mover_throttle=5))
    assert not {"AlterPartitionReassignments", "IncrementalAlterConfigs"} & set(broker.asked)


async def test_execute_refuses_impossible_plan_before_any_change() -> None:
    async with moving_broker() as broker:
        broker.hold("foo")
        known = rf"it has /d1 \(dirid:{DIRS['/d1']}\), /d2 \(dirid:{DIRS['/d2']}\), /d3"
        await refuses(broker, plan(broker=9), ReassignmentError, "Unknown broker id 9")
        bar = plan(TopicPartition("bar", 0))
        await refuses(broker, bar, ReassignmentError, r"Topic bar not found\.")
        await refuses(broker, plan(FOO_1), ReassignmentError, "Unable to find partition: foo-1")
        elsewhere = "foo-0-7: broker 7 has no log directory /d9; " + known
        await refuses(broker, plan(to="/d9"), ReassignmentError, elsewhere)
        stranger = "dirid:" + "A" * 21 + "B"
        unknown = f"foo-0-7: broker 7 has no log directory {stranger[:-1]}"
        await refuses(broker, plan(to=stranger), ReassignmentError, unknown)
        dead = "foo-0-7: log directory /d3 of broker 7 is offline"
        await refuses(broker, plan(to="/d3"), ReassignmentError, dead)
        broker.gives_ids = False
        silent = "broker 7 does not report the ids of its log directories; name the path instead"
        await refuses(broker, plan(to=f"dirid:{DIRS['/d1']}"), ReassignmentError, silent)


async def test_execute_during_reassignment_requires_additional_flag() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo", 2)
        await actions.execute(client, Answer(), plan(), options())
        with pytest.raises(
            RefusedError, match=r"existing partition assignment\.  Use --additional"
        ):
            await actions.execute(client, Answer(), plan(FOO_1), options())
        await actions.execute(client, Answer(), plan(FOO_1), options(is_additional=True))
        assert set(broker.reassigned) == {FOO_0, FOO_1}


async def test_execute_reports_refusals_with_their_partition() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.fail_next["AlterPartitionReassignments"] = [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        with pytest.raises(RefusedError) as refused:
            await actions.execute(client, Answer(), plan(), options())
        assert str(refused.value) == "Error reassigning partition(s): foo-0: no such thing"
        broker.reassigned.clear()
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.KAFKA_STORAGE_ERROR]
        with pytest.raises(
            ReassignmentError, match="Failed to alter dir for foo-0-7: /d2 is cordoned"
        ):
            await actions.execute(client, Answer(), plan(to="/d2"), options())


async def test_execute_sets_throttles_and_verify_removes_them_after_completion(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        wanted, passing = plan(to="/d2"), [ErrorCode.REQUEST_TIMED_OUT]
        broker.fail_next["DescribeLogDirs"] = list(passing)
        await actions.execute(client, Answer(), wanted, options(throttle=1000, mover_throttle=2000))
        assert said()[5:8] == [
            "Warning: You must run --verify periodically, until the reassignment completes, to"
            " ensure the throttle is removed.",
            "The inter-broker throttle limit was set to 1000 B/s",
            "The replica-alter-dir throttle limit was set to 2000 B/s",
        ]
        assert broker.topics["foo"].configs == {
            "leader.replication.throttled.replicas": "0:7,0:8",
            "follower.replication.throttled.replicas": "",
        }
        assert broker.broker_configs == {
            "leader.replication.throttled.rate": "1000",
            "follower.replication.throttled.rate": "1000",
            "replica.alter.log.dirs.io.max.bytes.per.second": "2000",
        }
        broker.fail_next["DescribeLogDirs"] = list(passing)
        await actions.verify(client, Answer(), wanted, preserve_throttles=False)
        assert said() == [
            "Status of partition reassignment:",
            "Reassignment of partition foo-0 is still in progress.",
            "Reassignment of replica foo-0-7 is still in progress.",
        ]
        broker.reassigned.clear()
        broker.finish_moves()
        await actions.verify(client, Answer(), wanted, preserve_throttles=True)
        assert len(broker.broker_configs) == 3
        said()
        await actions.verify(client, Answer(), wanted, preserve_throttles=False)
        assert said()[-3:] == [
            "Reassignment of replica foo-0-7 completed successfully.",
            "Clearing broker-level throttles on broker 7",
            "Clearing topic-level throttles on topic foo",
        ]
        assert (broker.broker_configs, broker.topics["foo"].configs) == ({}, {})


async def test_cancel_reverts_reassignments_and_directory_moves(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        wanted = plan(to="/d2")
        await actions.execute(client, Answer(), wanted, options())
        said()
        broker.fail_next["DescribeLogDirs"] = [ErrorCode.REQUEST_TIMED_OUT]
        await actions.cancel(client, Answer(), wanted, preserve_throttles=False, timeout_ms=10_000)
        assert said() == [
            "Successfully cancelled partition reassignment for: foo-0",
            "Successfully started moving log directory to /d1 for replica foo-0 with broker 7",
            "Clearing broker-level throttles on broker 7",
            "Clearing topic-level throttles on topic foo",
        ]
        assert broker.future == {}
        assert broker.reassigned["foo", 0].replicas is None
        await actions.cancel(client, Answer(), wanted, preserve_throttles=True, timeout_ms=10_000)
        assert said() == [
            "None of the specified partition reassignments are active.",
            "None of the specified partition moves are active.",
        ]


async def test_cancel_withdraws_directory_request_for_missing_replica(said: Said) -> None:
    """Otherwise the broker would place the replica in that directory when it is created later."""
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        wanted = plan(FOO_1, to="/d2")
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.REPLICA_NOT_AVAILABLE]
        await actions.cancel(client, Answer(), wanted, preserve_throttles=True, timeout_ms=0)
        assert broker.moves == {"any": [("foo", 1)]}
        broker.gives_ids = False
        await actions.cancel(client, Answer(), wanted, preserve_throttles=True, timeout_ms=0)
        assert broker.moves == {"any": [("foo", 1)]}


async def test_cancel_reports_reason_of_refusal() -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.execute(client, Answer(), plan(), options())
        broker.fail_next["AlterPartitionReassignments"] = [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        reported = "Error cancelling partition reassignment for: foo-0: no such thing"
        with pytest.raises(RefusedError, match=reported):
            await actions.cancel(client, Answer(), plan(), preserve_throttles=True, timeout_ms=0)


async def test_list_ongoing_prints_kafkas_lines(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.list_ongoing(client, Answer())
        assert said() == ["No partition reassignments found."]
        await actions.execute(client, Answer(), plan(), options())
        said()
        await actions.list_ongoing(client, Answer())
        assert said() == [
            "Current partition reassignments:",
            "foo-0: replicas: 7,7. adding: 7. removing: 7.",
        ]


async def test_generate_prints_current_and_proposed_assignment(said: Said) -> None:
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")

        def propose(topic: str, *brokers: int) -> Awaitable[None]:
            return actions.generate(
                client, Answer(), [topic], brokers, is_rack_aware=True, random_below=lambda _: 0
            )

        with pytest.raises(ReassignmentError, match="Replication factor: 2 larger than available"):
            await propose("foo", BROKER_ID)
        with pytest.raises(ReassignmentError, match="Unknown broker id 9"):
            await propose("foo", BROKER_ID, 9)
        with pytest.raises(ReassignmentError, match="Topic bar not found"):
            await propose("bar", BROKER_ID)
        assert said() == []
        broker.replicas = (BROKER_ID,)
        await propose("foo", BROKER_ID)
        alone = ROLLBACK.replace("7,8", "7").replace(',"any"', "")
        assert said() == [
            "Current partition replica assignment",
            alone,
            "",
            "Proposed partition reassignment configuration",
            alone.replace("/d1", "any"),
        ]


async def test_execute_warns_about_unreachable_broker_in_rollback_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its directories are shown as `any`, with a warning on standard error."""
    async with moving_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        await actions.execute(client, Answer(), plan(), options())
        assert capsys.readouterr().err == (
            "broker 8 does not report its log directories: broker 8 is not in the cluster's"
            " metadata; they are shown as any\n"
        )


async def test_verify_fails_if_broker_of_target_directory_is_unreachable() -> None:
    async with (
        moving_broker() as broker,
        ClusterClient(broker.address, retry_timeout_ms=1) as client,
    ):
        broker.hold("foo")
        with pytest.raises(OperatingError, match="broker 8 is not in the cluster's metadata"):
            await actions.verify(
                client, Answer(), plan(to="/d1", broker=8), preserve_throttles=True
            )
