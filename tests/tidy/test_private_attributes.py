"""Tests observe the product by its public methods, results, events and metrics.

A private attribute in a test ties the test to one implementation. :data:`REASONS` lists the uses
that remain; a file loses its entry when its last use is removed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.checkout import ROOT
from tests.tidy.sources import PACKAGE

#: Most uses per file, by the reason why they remain.
REASONS: Final[Mapping[str, Mapping[str, int]]] = {
    "A third-party library has no public method for it.": {
        "tests/clients/python/aio.py": 1,
        "tests/unit/protocol/test_kafka_codec.py": 1,
    },
    "State in memory is compared with the files, or with a model, and no caller needs all of it.": {
        "tests/faults/dirs/full_rig.py": 7,
        "tests/unit/controller/partitions/test_acknowledged_records.py": 2,
        "tests/unit/storage/segments/test_batch_runs.py": 1,
    },
    "Memory, visits or steps are counted, which no result shows.": {
        "tests/unit/broker/partitions/test_consumer_sessions.py": 1,
        "tests/unit/broker/partitions/test_delayed_operations.py": 1,
        "tests/unit/broker/partitions/test_fetch_sessions.py": 1,
        "tests/unit/broker/replicas/test_isr_manager.py": 3,
        "tests/unit/net/test_tls_transport.py": 3,
        "tests/unit/storage/manager/test_log_manager.py": 2,
    },
    "The component is built from state of its owner, and the test calls the component alone.": {
        "tests/faults/rig.py": 1,
        "tests/unit/broker/moves/test_alter_log_dirs_manager.py": 2,
        "tests/unit/daemon/wiring/test_transaction_wiring.py": 1,
        "tests/unit/storage/cleaning/test_cleaner_offsets.py": 1,
        "tests/unit/storage/replicas/test_swap_recovery.py": 4,
    },
    "The test waits for a moment, or causes one, that no event shows.": {
        "tests/faults/moves/test_move_faults.py": 1,
        "tests/unit/broker/groups/coordinator/test_consumer_group_driver.py": 1,
        "tests/unit/broker/replicas/test_replica_appends.py": 1,
        "tests/unit/raft/log/test_snapshot_maker.py": 1,
        "tests/unit/storage/manager/test_dir_arrivals.py": 1,
        "tests/unit/storage/scrubbing/test_scrub.py": 1,
    },
    "The test sets up a state or a failure that would need other nodes, rare timing or hours.": {
        "tests/disk/test_full_compaction.py": 1,
        "tests/spark/connector/test_offset_lookup.py": 1,
        "tests/unit/broker/apis/test_log_dir_apis.py": 1,
        "tests/unit/broker/directories/test_log_dir_metrics.py": 2,
        "tests/unit/controller/brokers/test_metadata_fetches.py": 2,
        "tests/unit/raft/test_driver_quorum.py": 1,
        "tests/unit/storage/cleaning/test_log_cleaner.py": 2,
    },
    "A game day fault needs a cluster to choose its target; tests/integration plays all of it.": {
        "tests/unit/gameday/faults/test_cold_reader.py": 1,
        "tests/unit/gameday/faults/test_controller_faults.py": 2,
        "tests/unit/gameday/faults/test_host_loss.py": 2,
    },
}
ALLOWED: Final[Mapping[str, int]] = {
    name: uses for files in REASONS.values() for name, uses in files.items()
}
#: The invariants of simulated clusters compare the state of daemons, which no client can see.
EXEMPT: Final = "tests/sim/search/"
#: Public methods of named tuples.
_OF_NAMED_TUPLES: Final = frozenset({"_replace", "_fields", "_make", "_asdict"})
_PATCHES: Final = frozenset({"setattr", "getattr", "delattr", "hasattr"})


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_NAMED_TUPLES


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes, variables and attributes that ``tree`` defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield node.attr
            case ast.Name(ctx=ast.Store()):
                yield node.id


def private_uses(tree: ast.AST, of_product: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a private name of the product in a test file."""
    names = of_product - frozenset(defined_in(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case ast.Attribute() if is_private(node.attr) and node.attr in names:
                yield node.lineno, node.attr
            case ast.ImportFrom(module=str(module)) if module.startswith("kraftjbod"):
                yield from (
                    (node.lineno, alias.name) for alias in node.names if is_private(alias.name)
                )
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if (
                called in _PATCHES
            ):
                for argument in node.args:
                    match argument:
                        case ast.Constant(value=str(text)):
                            name = text.rpartition(".")[2]
                            if is_private(name) and name in names:
                                yield node.lineno, name


def product_names() -> frozenset[str]:
    """Return all private names that the product defines."""
    return frozenset(
        name
        for path in PACKAGE.rglob("*.py")
        for name in defined_in(ast.parse(path.read_text()))
        if is_private(name)
    )


def uses_by_file() -> dict[str, list[str]]:
    of_product, found = product_names(), dict[str, list[str]]()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(EXEMPT):
            continue
        uses = sorted(set(private_uses(ast.parse(path.read_text()), of_product)))
        if uses:
            found[name] = [f"{name}:{line}: {used}" for line, used in uses]
    return found


def test_tests_use_no_private_attributes_beyond_the_allowed_ones() -> None:
    found = uses_by_file()
    more = [use for name, uses in found.items() for use in uses if len(uses) > ALLOWED.get(name, 0)]
    assert more == [], "observe a public method, a result, an event or a metric instead"
    assert sorted(set(ALLOWED) - set(found)) == [], "these files use none: remove their entries"


def test_private_uses_are_found_in_attributes_imports_and_patches() -> None:
    source = """
from kraftjbod.core.version import _PROJECT
def test_a(monkeypatch):
    a._state = b._replace(c=1)
    monkeypatch.setattr(a, "_state", 1)
    os._exit(0)
class Own:
    def __init__(self):
        self._own = self._state
def test_b():
    Own()._own
"""
    tree = ast.parse(source)
    found = Counter(name for _, name in private_uses(tree, frozenset({"_state", "_own"})))
    assert found == {"_PROJECT": 1, "_state": 2}


def test_each_allowed_file_exists() -> None:
    assert [name for name in ALLOWED if not Path(ROOT / name).is_file()] == []
