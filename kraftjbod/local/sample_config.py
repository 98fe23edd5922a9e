"""WIRE. Documented configuration files, as they ship with the package: ``kraftjbod/samples/``.

They are one controller and one broker of a cluster on one host; further brokers are made of the
first by its number, its port and its directories.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from kraftjbod.local.cluster_process import CONTROLLER_ID, FIRST_CLIENT_PORT

ROLES: Final = ("controller", "broker")


def sample(role: str, node_id: int = 1) -> str:
    """The file of a controller, or of the broker of that number."""
    text = (files("kraftjbod") / "samples" / f"{role}.properties").read_text(encoding="utf-8")
    if role == "controller" or node_id == 1:
        return text
    for old, new in (
        ("node.id=1\n", f"node.id={node_id}\n"),
        ("broker-1", f"broker-{node_id}"),
        (f":{FIRST_CLIENT_PORT}\n", f":{FIRST_CLIENT_PORT + node_id - 1}\n"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return text


def write_samples(directory: Path, *, brokers: int) -> dict[Path, bool]:
    """A file for each daemon of a small cluster; what is there already stays as it is.

    :returns: for each file whether it was written.
    :raises OSError: if a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {f"controller-{CONTROLLER_ID}": sample("controller")}
    texts |= {f"broker-{number}": sample("broker", number) for number in range(1, brokers + 1)}
    written = {}
    for name, text in texts.items():
        path = directory / f"{name}.properties"
        written[path] = not path.exists()
        if written[path]:
            path.write_text(text, encoding="utf-8")
    return written
