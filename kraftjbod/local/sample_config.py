"""WIRE. The documented sample configuration files of the package: ``kraftjbod/samples/``.

The files are for three controllers and one broker on one host. Files of further daemons are derived
from the first by replacing numbers, ports and directories.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from kraftjbod.local.cluster_process import (
    CONTROLLER_ID,
    CONTROLLER_PORT,
    FIRST_CLIENT_PORT,
)

ROLES: Final = ("controller", "broker")
#: Number of controllers in the sample files.
CONTROLLERS: Final = 3


def sample(role: str, number: int = 1, *, controllers: int = CONTROLLERS) -> str:
    """Return the configuration of the controller or broker with that number, counted from 1."""
    text = (files("kraftjbod") / "samples" / f"{role}.properties").read_text(encoding="utf-8")
    changes = {_voters(CONTROLLERS): _voters(controllers)} if controllers != CONTROLLERS else {}
    if number > 1 and role == "broker":
        changes |= {
            "node.id=1\n": f"node.id={number}\n",
            "broker-1": f"broker-{number}",
            f":{FIRST_CLIENT_PORT}\n": f":{FIRST_CLIENT_PORT + number - 1}\n",
        }
    elif number > 1:
        node_id = CONTROLLER_ID + number - 1
        changes |= {
            f"node.id={CONTROLLER_ID}\n": f"node.id={node_id}\n",
            f"controller-{CONTROLLER_ID}": f"controller-{node_id}",
            "/kraftjbod/controller\n": f"/kraftjbod/controller-{node_id}\n",
            f":{CONTROLLER_PORT}\n": f":{CONTROLLER_PORT - number + 1}\n",
        }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def write_samples(
    directory: Path, *, brokers: int, controllers: int = CONTROLLERS
) -> dict[Path, bool]:
    """Write a configuration file ``<daemon>.properties`` for each daemon of a small cluster.

    Existing files stay as they are.

    :param directory: created if it is missing.
    :returns: for each file whether it was written.
    :raises OSError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        f"controller-{CONTROLLER_ID + number - 1}": sample(
            "controller", number, controllers=controllers
        )
        for number in range(1, controllers + 1)
    }
    texts |= {
        f"broker-{number}": sample("broker", number, controllers=controllers)
        for number in range(1, brokers + 1)
    }
    written = {}
    for name, text in texts.items():
        path = directory / f"{name}.properties"
        written[path] = not path.exists()
        if written[path]:
            path.write_text(text, encoding="utf-8")
    return written


def _voters(controllers: int) -> str:
    """Return the voters line. Controller ports go down from the first; brokers' ports go up."""
    voters = (
        f"{CONTROLLER_ID + number}@127.0.0.1:{CONTROLLER_PORT - number}"
        for number in range(controllers)
    )
    return f"controller.quorum.voters={','.join(voters)}\n"
