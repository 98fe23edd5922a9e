"""The test in docs/simulation.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize("seed", [3])
def test_example_of_the_simulation_page_passes(seed: int) -> None:
    found = re.search(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    names: dict[str, object] = {}
    exec(compile(found[1], str(_PAGE), "exec"), names)
    names["test_orders_survive_a_broker_and_a_disk"](seed)  # type: ignore[operator]
