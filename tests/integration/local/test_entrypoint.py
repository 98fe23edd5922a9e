"""The entrypoint of the image, with directories of the test in place of the image's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.process

CLUSTER_ID: Final = "Zp5Xk3mVQ0ehF7yT2sBn4w"


class Container:
    """A container's volumes and its entrypoint. The daemons only print their names."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.metadata = home / "data/metadata"
        for name in ("data/metadata", "data/cluster", "run/kraftjbod", "etc/kraftjbod", "bin"):
            (home / name).mkdir(parents=True)
        places = {"/data/": f"{home}/data/", "/etc/kraftjbod": f"{home}/etc/kraftjbod"}
        places |= {"/run/kraftjbod": f"{home}/run/kraftjbod"}
        for name in ("start.sh", "controller.properties", "broker.properties"):
            text = (ROOT / "conf/docker" / name).read_text()
            for place, own in places.items():
                text = text.replace(place, own)
            (home / "etc/kraftjbod" / name).write_text(text)
        daemon = home / "bin/kraftjbod-controller"
        daemon.write_text("#!/bin/sh\necho serving\n")
        daemon.chmod(0o755)

    def start(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.home / "etc/kraftjbod/start.sh"), "controller"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd="/",
            env={
                **os.environ,
                "PATH": f"{self.home}/bin:{ROOT}/bin:{os.environ['PATH']}",
                "CLUSTER_ID": CLUSTER_ID,
                "NODE_ID": "100",
                "CONTROLLER_VOTERS": "100@controller:9090",
                "CLUSTER_HOSTS": "controller,broker-1",
                **environment,
            },
        )

    def lose_metadata(self) -> None:
        shutil.rmtree(self.metadata)
        self.metadata.mkdir()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_entrypoint_does_not_format_lost_volume_of_the_controller(container: Container) -> None:
    first = container.start()
    assert first.stdout.endswith("serving\n"), first.stderr
    assert container.start().stdout == "serving\n"
    container.lose_metadata()
    lost = container.start()
    assert lost.returncode == 65
    assert "its volume was lost. Put it back" in lost.stderr
    assert list(container.metadata.iterdir()) == []
    replaced = container.start(REPLACE_LOST_METADATA="yes")
    assert replaced.stdout.endswith("serving\n"), replaced.stderr


def test_entrypoint_marks_cluster_formatted_by_an_older_version(container: Container) -> None:
    container.start()
    (container.home / "data/cluster/controller-formatted").unlink()
    container.start()
    container.lose_metadata()
    assert container.start().returncode == 65
