"""A broker with compiled or interpreted byte scans, or without validation of records.

usage: scan_form_broker.py compiled|interpreted|off CONFIG

For the bench only: the product has no such switch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoCompiledForm(MetaPathFinder):
    """Import hook that hides the compiled byte scans."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if "._byte_scans_" in name:
            raise ModuleNotFoundError(name)
        return None


def main() -> None:
    form = sys.argv.pop(1)
    if form != "compiled":
        sys.meta_path.insert(0, NoCompiledForm())
    # Before the broker's modules import the scans.
    from kraftjbod.protocol import record_scans, record_validation

    if form == "off":
        record_validation.validate_quickly = lambda buf, header, rules: (
            record_validation.CheckedBatch(buf, header)
        )
    else:
        assert form == record_scans.FORM, f"the byte scans are {record_scans.FORM} here"
    from kraftjbod.daemon import broker_server

    broker_server.main()


if __name__ == "__main__":
    main()
