"""The pytest plugin as users have it: fixtures, options, and the example of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.checkout import ROOT

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest like a user who installed the package."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *arguments, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        timeout=240,
        check=False,
    )


def test_pytest_plugin_runs_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = (ROOT / "docs/testing.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "test_my_app.py").write_text(example)
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_pytest_plugin_applies_options_and_reports_events_of_failed_tests(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(
        textwrap.dedent("""
        import pytest

        def test_one(kraftjbod_session_cluster):
            assert len(kraftjbod_session_cluster.brokers) == 1
            kraftjbod_session_cluster.create_topic("a")

        def test_two(kraftjbod_session_cluster):
            kraftjbod_session_cluster.create_topic("b")

        @pytest.mark.kraftjbod(brokers=2)
        def test_own(kraftjbod_cluster, kraftjbod_session_cluster):
            assert kraftjbod_cluster is not kraftjbod_session_cluster
            assert [len(broker.dirs) for broker in kraftjbod_cluster.brokers] == [2, 2]
            assert kraftjbod_cluster.broker(1).dir(0).disk.kind == "plain"

        def test_fails(kraftjbod_clusters):
            cluster = kraftjbod_clusters(brokers=1, dirs=1)
            assert "".join(("un", "wanted")) == cluster.bootstrap_servers
        """)
    )
    options = ("--kraftjbod-brokers=1", "--kraftjbod-dirs=2", "--kraftjbod-disks=plain")
    done = run_pytest(tmp_path, *options, "-n", "2")
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "- kraftjbod daemons -" in done.stdout
    for printed in re.findall(r"--- broker-1 runs; (\S+)", done.stdout):
        assert "broker_started" in Path(printed).read_text()
