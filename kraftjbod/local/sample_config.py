"""WIRE. The documented sample configuration files of the package: ``kraftjbod/samples/``.

The files are for three controllers and one broker on one host. Files of further daemons are derived
from the first by replacing numbers, ports and directories. A secured file is the same file with the
lines of ``broker.secured.properties`` or ``controller.secured.properties`` at its end, because the
last value of a key counts.
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
from kraftjbod.local.ports import HOST
from kraftjbod.local.security_files import Node

ROLES: Final = ("controller", "broker")
#: Number of controllers in the sample files.
CONTROLLERS: Final = 3
#: Directory of keys and certificates in the secured sample files.
_SECURITY_DIR: Final = "/etc/kraftjbod/security"
#: From a broker's port for clients to its port for other brokers, in secured files.
_TO_INTERNAL: Final = 100


def sample(
    role: str, number: int = 1, *, controllers: int = CONTROLLERS, secured: bool = False
) -> str:
    """Return the configuration of the controller or broker with that number, counted from 1.

    :param secured: whether nodes and clients have to prove their identity, over TLS.
    """
    text = _file(f"{role}.properties")
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
    if not secured:
        return text
    node_id = number if role == "broker" else CONTROLLER_ID + number - 1
    texts = {"@NODE_ID@": str(node_id)}
    if role == "broker":
        client_port = FIRST_CLIENT_PORT + number - 1
        texts |= {"@PORT@": str(client_port), "@INTERNAL_PORT@": str(client_port + _TO_INTERNAL)}
    overlay = _file(f"{role}.secured.properties")
    for old, new in texts.items():
        overlay = overlay.replace(old, new)
    return f"{text}\n{overlay}"


def security_dir(directory: Path) -> Path:
    """Return where the secured files in ``directory`` expect keys and certificates."""
    return directory.absolute() / "security"


def sample_nodes(*, brokers: int, controllers: int) -> list[Node]:
    """Return the nodes of the sample files, for their certificates."""
    hosts = (HOST, "localhost")
    ids = [("controller", CONTROLLER_ID + number) for number in range(controllers)]
    ids += [("broker", number) for number in range(1, brokers + 1)]
    return [Node(f"{role}-{node_id}", hosts) for role, node_id in ids]


def write_samples(
    directory: Path, *, brokers: int, controllers: int = CONTROLLERS, secured: bool = False
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
            "controller", number, controllers=controllers, secured=secured
        )
        for number in range(1, controllers + 1)
    }
    texts |= {
        f"broker-{number}": sample("broker", number, controllers=controllers, secured=secured)
        for number in range(1, brokers + 1)
    }
    written = {}
    for name, text in texts.items():
        path = directory / f"{name}.properties"
        written[path] = not path.exists()
        if written[path]:
            text = text.replace(_SECURITY_DIR, str(security_dir(directory)))
            path.write_text(text, encoding="utf-8")
    return written


def _file(name: str) -> str:
    return (files("kraftjbod") / "samples" / name).read_text(encoding="utf-8")


def _voters(controllers: int) -> str:
    """Return the voters line. Controller ports go down from the first; brokers' ports go up."""
    voters = (
        f"{CONTROLLER_ID + number}@127.0.0.1:{CONTROLLER_PORT - number}"
        for number in range(controllers)
    )
    return f"controller.quorum.voters={','.join(voters)}\n"
