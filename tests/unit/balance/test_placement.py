"""Loads of directories for a plan, derived from reported directories and replicas."""

from __future__ import annotations

import pytest

from kraftjbod.balance.placement import (
    Drain,
    empty_dirs,
    filled_dirs,
    placed_replicas,
    require_known,
)
from kraftjbod.core.errors import StartupError
from tests.unit.balance.clusters import log_dir, replica

TWO_DISKS = (log_dir(1, "/a", 500), log_dir(1, "/b", 900))


def test_empty_dirs_derive_permitted_moves_from_directory_state() -> None:
    found = [
        log_dir(1, "/online", 101),
        log_dir(1, "/cordoned", 100, is_cordoned=True),
        log_dir(1, "/full", 0, state="saturated"),
        log_dir(1, "/hung", 100, state="stalled"),
        log_dir(1, "/dead", 0, state="offline", total=0),
        log_dir(1, "/drained", 100),
        log_dir(2, "/drained", 100),
        log_dir(3, "/any", 100),
    ]
    judged = empty_dirs(found, [Drain(broker_id=1, path="/drained"), Drain(broker_id=3)])
    assert [
        (one.broker_id, one.path, load.spare_bytes, load.takes, load.gives, load.is_drained)
        for one in judged
        for load in [one.load]
    ] == [
        (1, "/online", 80, True, True, False),
        (1, "/cordoned", 0, False, True, False),
        (1, "/full", 0, False, True, False),
        (1, "/hung", 0, False, False, False),
        (1, "/dead", 0, False, False, False),
        (1, "/drained", 0, False, True, True),
        (2, "/drained", 80, True, True, False),
        (3, "/any", 0, False, True, True),
    ]


def test_filled_dirs_count_moves_in_flight_at_their_target() -> None:
    dirs = empty_dirs(TWO_DISKS)
    placed = placed_replicas(
        [
            replica(0, 1, "/a", 100, rate=2.0),
            replica(0, 1, "/b", 30, is_future=True),
            replica(1, 1, "/a", 50),
            replica(2, 1, "/b", 40, is_future=True),
            replica(3, 1, "/a", 5, brokers=(2, 3)),
            replica(4, 1, "/elsewhere", 5),
        ],
        dirs,
    )
    assert sorted(
        (one.partition, one.path, one.size_bytes, one.pending_bytes, one.is_movable)
        for one in placed
    ) == [
        (0, "/b", 100, 70, False),
        (1, "/a", 50, 0, True),
        (2, "/b", 40, 0, False),
        (3, "/a", 5, 0, False),
        (4, "/elsewhere", 5, 0, False),
    ]
    filled = filled_dirs(dirs, placed)
    assert [one.load.spare_bytes for one in filled] == [400, 650]
    assert [(one.size_bytes, one.fixed_bytes, one.largest_bytes) for one in filled] == [
        (55, 5, 50),
        (140, 140, 100),
    ]
    assert [(one.replicas, one.write_rate) for one in filled] == [(2, 0.0), (2, 2.0)]


@pytest.mark.parametrize(
    ("known", "drain", "said"),
    [
        ((), Drain(broker_id=1), "no log directory is known"),
        (TWO_DISKS, Drain(broker_id=9), r"--drain broker 9: .* there are brokers \[1\]"),
        (TWO_DISKS, Drain(broker_id=1, path="/c"), "--drain 1:/c: .* there are /a, /b"),
    ],
)
def test_require_known_rejects_unknown_brokers_and_directories(
    known: tuple, drain: Drain, said: str
) -> None:
    with pytest.raises(StartupError, match=said):
        require_known(empty_dirs(known), [drain])
