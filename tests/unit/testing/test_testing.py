"""Public names of ``kraftjbod.testing``."""

from __future__ import annotations

import subprocess
import sys


def test_testing_package_loads_its_names_lazily() -> None:
    """pytest loads the package in every run, because of its plugin."""
    program = (
        "import sys, kraftjbod.testing.pytest_plugin; "
        "assert not any('pydantic' in name or 'local_cluster' in name for name in sys.modules); "
        "from kraftjbod.testing import ClusterTimeoutError, LocalCluster; "
        "assert LocalCluster.__module__ == ClusterTimeoutError.__module__; "
        "import kraftjbod.testing as t; assert not hasattr(t, 'Other')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_simulator_without_greenlet_names_the_extra_to_install() -> None:
    program = (
        "import sys; sys.modules['greenlet'] = None\n"
        "try: import kraftjbod.testing.simulation.simulated_cluster\n"
        "except ModuleNotFoundError as e: print(e.name, e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == (
        "greenlet the simulator needs the package greenlet: pip install 'kraftjbod[simulation]'\n"
    )
