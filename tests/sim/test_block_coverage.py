"""``block_coverage``: which suites count as blocks, and that a seed's executed lines are seen."""

from __future__ import annotations

from functools import partial
from textwrap import dedent

import pytest

from tests.sim.block_coverage import PACKAGE, Block, blocks_of, collect, report
from tests.sim.search.seed_run import run_seed


def test_blocks_of_returns_each_suite_inside_functions() -> None:
    source = dedent('''
        import os

        if os.sep:
            at_import = 1

        class Log:
            size = 0

            def read(self, offset):
                """Docstring only in front."""
                if offset:
                    return 1
                else:
                    offset = 2
                try:
                    offset += 1
                except OSError:
                    raise
                match offset:
                    case 3:
                        return 3

            def stub(self): ...
        ''')
    assert blocks_of(source) == [
        Block(12, "Log.read"),
        Block(13, "Log.read"),
        Block(15, "Log.read"),
        Block(17, "Log.read"),
        Block(19, "Log.read"),
        Block(22, "Log.read"),
    ]


@pytest.mark.long
def test_collect_sees_what_a_simulated_controller_executes() -> None:
    run = partial(run_seed, duration_ms=500, controllers=1, applications=[], is_light=True)
    outcomes, lines = collect([1], run, jobs=1)
    assert not outcomes[0].findings
    machine = str(PACKAGE / "raft" / "machine" / "core.py")
    assert lines[machine]
    table = report(lines, with_missing=False)
    assert [row.split()[0] for row in table] == [
        "raft", "controller", "metadata", "storage", "broker",
    ]  # fmt: skip
    assert all(int(row.split()[1]) > 50 for row in table)
