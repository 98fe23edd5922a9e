"""Small clusters for plans: written by hand, and drawn from a seed with every state."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from kraftjbod.balance.placement import Drain, LogDir, PlanRequest, Replica

_STATES: Final = ("online",) * 9 + ("saturated", "stalled", "offline")


def log_dir(
    broker: int,
    path: str,
    free: int = 900,
    *,
    state: str = "online",
    is_cordoned: bool = False,
    rack: str | None = None,
    total: int = 1000,
) -> LogDir:
    return LogDir(broker, rack, path, "", state, is_cordoned, total, free)


def replica(
    partition: int,
    broker: int,
    path: str,
    size: int,
    *,
    rate: float = 0.0,
    is_future: bool = False,
    brokers: Sequence[int] | None = None,
) -> Replica:
    named = (broker,) if brokers is None else tuple(brokers)
    return Replica("t", partition, broker, path, size, rate, False, is_future, named)


def drawn_cluster(seed: int) -> tuple[list[LogDir], list[Replica], PlanRequest]:
    """Uneven brokers in racks, moves in flight, closed and unknown directories, and a request.

    Rates are whole numbers: their sums are the same in any order.
    """
    rng = random.Random(seed)
    brokers = range(1, rng.randint(3, 6))
    paths = [f"/disk-{n}" for n in range(rng.randint(2, 4))]
    sizes = {(b, path): rng.choice((5_000, 10_000, 20_000)) for b in brokers for path in paths}
    held: dict[tuple[int, str], int] = defaultdict(int)
    replicas = []
    for number in range(rng.randint(20, 60)):
        size, rate = int(rng.paretovariate(0.9) * 20) % 3_000, float(rng.randint(0, 9) ** 3)
        chosen = rng.sample(brokers, min(len(brokers), rng.randint(1, 3)))
        topic = f"topic-{number % 3}"
        named = None if rng.random() < 0.03 else tuple(chosen)
        for broker in chosen:
            path = min(rng.sample(paths, 2)) if rng.random() < 0.9 else "/unknown"
            held[broker, path] += size
            replicas.append(Replica(topic, number, broker, path, size, rate, False, False, named))
            if rng.random() < 0.05:
                new = Replica(topic, number, broker, paths[-1], size // 3, 0.0, False, True, named)
                replicas.append(new)
    dirs = [
        LogDir(
            broker,
            rng.choice(("a", "b", None)) if seed % 2 else f"rack-{broker % 2}",
            path,
            None,
            rng.choice(_STATES),
            rng.random() < 0.05,
            total,
            max(0, total - held[broker, path]),
        )
        for (broker, path), total in sizes.items()
    ]
    racks = {one.broker_id: one.rack for one in dirs}
    dirs = [one._replace(rack=racks[one.broker_id]) for one in dirs]
    drains: tuple[Drain, ...] = ()
    if rng.random() < 0.4:
        drains = (Drain(broker_id=1, path=rng.choice((None, paths[0]))),)
    limits = rng.choice(((None, None), (None, None), (3, None), (None, 2_000)))
    request = PlanRequest(
        across_brokers=rng.random() < 0.7, drains=drains, max_moves=limits[0], max_bytes=limits[1]
    )
    rng.shuffle(replicas)
    return dirs, replicas, request
