"""The CSS of a report, as far as it can be read without a browser."""

from __future__ import annotations

import re

from kraftjbod.spark.report.report_style import STYLE
from kraftjbod.spark.style.plot_style import PALETTE


def test_every_variable_has_a_value_in_both_schemes() -> None:
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", STYLE)) | {c.name for c in PALETTE}
    light, dark = (set(re.findall(r"--([a-z0-9-]+):#", part)) for part in STYLE.split("@media")[:2])
    assert used <= light and used <= dark


def test_nothing_comes_from_elsewhere() -> None:
    assert "url(" not in STYLE and "@import" not in STYLE and "</" not in STYLE
