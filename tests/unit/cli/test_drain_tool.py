"""Output and exit codes of ``kraftjbod-drain``."""

from __future__ import annotations

import json

import click
import pytest

from kraftjbod.cli.drain.drain_plan import Misfit, Move, Place
from kraftjbod.cli.drain_tool import main, misfit_line, move_line, parse_directory
from kraftjbod.cli.reassignment.reassignment_plan import Replica
from tests.unit.cli.drain.drained_broker import CORDONS, DrainedBroker, drained_broker
from tests.unit.cli.mini_broker import BROKER_ID, invoke
from tests.unit.cli.reassignment.moving_broker import DIRS, SIZE_BYTES

DISK = ("--dir", f"{BROKER_ID}:/d1")


async def drained(broker: DrainedBroker, *words: str) -> tuple[int, str, str]:
    done = await invoke(main, "--bootstrap-server", broker.address, *words)
    return done.exit_code, done.stdout, done.stderr


async def test_drain_dry_run_prints_every_move() -> None:
    async with drained_broker() as broker:
        broker.hold("foo", 2)
        assert await drained(broker, *DISK, "--dry-run") == (
            0,
            "foo-0 (4.0 KiB) 7:/d1 -> 7:/d2\n"
            "foo-1 (4.0 KiB) 7:/d1 -> 7:/d2\n"
            "To be moved: 2 replicas, 8.0 KiB.\n",
            "",
        )
        assert broker.broker_configs == {}


async def test_drain_of_directory_reports_that_it_is_safe_to_pull() -> None:
    async with drained_broker() as broker:
        broker.hold("foo")
        code, out, err = await drained(broker, "--dir", f"{BROKER_ID}:{DIRS['/d1']}")
        assert (code, out) == (
            0,
            "Moved 1 replica. /d1 of broker 7 is empty: it is safe to pull.\n"
            "Next: release its id with\n"
            "  kraftjbod-log-dirs --forget 7:/d1\n"
            "then pull the disk, and take the directory out of log.dirs in the broker's file.\n",
        )
        assert err.startswith("directory /d1 of broker 7 is cordoned: it takes no new replicas\n")
        assert broker.broker_configs == {CORDONS: "/d1"}


async def test_drain_of_metadata_directory_is_not_safe_to_pull() -> None:
    async with drained_broker() as broker:
        broker.broker_configs["log.dirs"] = "/d1,/d2"
        _, out, _ = await drained(broker, *DISK)
        assert "but the broker's own metadata: it is not safe to pull while the broker runs" in out


async def test_drain_of_empty_broker_reports_that_it_is_safe_to_stop() -> None:
    async with drained_broker() as broker:
        broker.current = {}
        code, out, _ = await drained(broker, "--broker", str(BROKER_ID))
        assert (code, out.splitlines()[0]) == (
            0,
            "Moved 0 replicas. Broker 7 has no replicas and leads nothing: it is safe to stop.",
        )
        assert broker.broker_configs == {CORDONS: "*"}


async def test_drain_refusal_lists_misfits_and_lifts_the_cordon() -> None:
    async with drained_broker() as broker:
        broker.hold("foo", 2)
        broker.usable["/d2"] = SIZE_BYTES + 1000
        code, out, err = await drained(broker, *DISK)
        assert (code, out) == (
            2,
            "directory /d1 of broker 7 cannot be drained; there is no place for\n"
            "  foo-1: 4.0 KiB, 1000 B free at best\n"
            "Nothing of this plan was moved.\n",
        )
        assert err.splitlines()[-1] == "directory /d1 of broker 7 is not cordoned any more"
        code, out, _ = await drained(broker, *DISK, "--dry-run")
        assert (code, out.splitlines()[0]) == (2, "foo-0 (4.0 KiB) 7:/d1 -> 7:/d2")


async def test_drain_with_format_json_prints_moves_and_misfits() -> None:
    async with drained_broker() as broker:
        broker.hold("foo")
        _, out, _ = await drained(broker, *DISK, "--dry-run", "--format", "json")
        assert json.loads(out) == {
            "version": 1,
            "broker": 7,
            "logDir": "/d1",
            "state": "planned",
            "moves": [
                {
                    "partition": "foo-0",
                    "size": SIZE_BYTES,
                    "from": {"broker": 7, "logDir": "/d1"},
                    "to": {"broker": 7, "logDir": "/d2"},
                    "isUnderWay": False,
                    "sharesRack": False,
                }
            ],
            "doesNotFit": [],
        }
        broker.usable["/d2"] = 5
        _, out, _ = await drained(broker, *DISK, "--format", "json")
        reported = json.loads(out)
        assert reported["state"] == "refused"
        assert reported["doesNotFit"] == [{"partition": "foo-0", "size": SIZE_BYTES, "bestFree": 5}]


async def test_drain_cancel_prints_number_of_cancelled_moves() -> None:
    async with drained_broker() as broker:
        broker.hold("foo")
        broker.ends_moves = False
        broker.future = {("foo", 0): "/d2"}
        broker.broker_configs[CORDONS] = "/d1"
        code, out, _ = await drained(broker, *DISK, "--cancel")
        assert (code, out) == (0, "Cancelled 1 move out of directory /d1 of broker 7.\n")
        assert (broker.future, broker.broker_configs) == ({}, {})


def test_move_line_shows_shared_rack_and_misfit_line_lack_of_open_directory() -> None:
    move = Move(
        replica=Replica(1, "t", 0),
        source="",
        target=Place(2, "/x"),
        size_bytes=2048,
        is_under_way=True,
        shares_rack=True,
    )
    assert move_line(move) == ("t-0 (2.0 KiB) 1 -> 2:/x, under way, in a rack with another replica")
    misfit = Misfit(replica=Replica(1, "t", 0), size_bytes=5, best_free_bytes=None)
    assert misfit_line(misfit) == "  t-0: 5 B, no open directory may take it"
    assert parse_directory("1:dirid:x") == (1, "dirid:x")


@pytest.mark.parametrize("text", ["", "1", "1:", ":/d", "x:/d", "/d"])
def test_parse_directory_rejects_malformed_names(text: str) -> None:
    with pytest.raises(click.BadParameter, match="BROKER:PATH or BROKER:ID"):
        parse_directory(text)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "exactly one of --dir, --broker"),
        (("--dir", "1:/d", "--broker", "1"), "exactly one of --dir, --broker"),
        (("--broker", "1", "--cancel", "--dry-run"), "--cancel excludes the other options"),
        (("--broker", "1", "--across-brokers"), "--across-brokers belongs to --dir"),
    ],
)
async def test_drain_rejects_conflicting_options_with_reason(
    words: tuple[str, ...], why: str
) -> None:
    done = await invoke(main, "--bootstrap-server", "h:1", *words)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
