"""Golden transcripts: commands and the records of the controller, or the messages of Raft (raft/).

A file is a list of blocks separated by blank lines. A block has commands, ``----``, and their
output. A block that ends in ``state`` shows the whole state after its commands.
``GOLDEN_REWRITE=1 pytest tests/golden`` writes the current output; the reviewer reads the diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.raft_transcript import Quorum
from tests.golden.transcript import World

_HERE = Path(__file__).parent
_RULE = "----"


def _blocks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands (with comments) and the expected lines of each block."""
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        rule = lines.index(_RULE) if _RULE in lines else len(lines)
        yield lines[:rule], lines[rule + 1 :]


def _play(text: str, world: World | Quorum) -> str:
    reported: list[str] = []
    for commands, _ in _blocks(text):
        out: list[str] = []
        for line in commands:
            if line == "state":
                out += world.state_lines()
            elif not line.startswith("#"):
                out += world.run(line)
        if isinstance(world, World):
            world.managers.index.check_invariants(world.state)
        reported.append("\n".join([*commands, _RULE, *out] if out else commands))
    return "\n\n".join(reported) + "\n"


@pytest.mark.parametrize("path", sorted(_HERE.rglob("*.txt")), ids=lambda path: path.stem)
def test_transcript_replay_matches_recorded_output(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    played = _play(written, Quorum() if path.parent.name == "raft" else World())
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(played, encoding="utf-8")
    assert played == path.read_text(encoding="utf-8")
