"""Generates docs/states.md: diagrams of the state machines, from the code's transition tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from kraftjbod.broker.partitions import replica_states
from kraftjbod.core import log_dir_state
from kraftjbod.storage.log_dirs import log_dir_policy

_HEAD: Final = """# State machines

`make docs` writes this page from the transition tables that the code uses. A test compares it with them.
If a diagram has no arrow for an event in a state, the event does not change the state.
"""


class Machine(NamedTuple):
    """A transition table, and the text of its section."""

    title: str
    source: str
    intro: str
    first: Enum
    transitions: Mapping[tuple[Any, Any], Any]

    @property
    def states(self) -> list[Enum]:
        return list(type(self.first))


MACHINES: Final = (
    Machine(
        title="A log directory",
        source="core/log_dir_state.py",
        intro="Directories in the states SATURATED and STALLED are *impaired*: they recover without an "
        "operator. An OFFLINE directory has failed.\n"
        "The *reserve* is a file that keeps some space for the broker. The broker deletes it when the "
        "disk is full, and writes it again when there is space.",
        first=log_dir_state.LogDirState.ONLINE,
        transitions=log_dir_state.TRANSITIONS,
    ),
    Machine(
        title="A replica on a broker",
        source="broker/partitions/replica_states.py",
        intro="These states are independent of the replica's role, leader or follower.\n\n"
        "- MAKING: the broker is creating or opening the log.\n"
        "- HELD_BACK: the log cannot be created yet, because every possible directory is full, "
        "hangs or is cordoned.\n"
        "- ONLINE: the log accepts all operations.\n"
        "- SATURATED, STALLED: the replica's directory is in the state of this name (KIP-928).\n"
        "- OFFLINE: the replica's directory is offline, or its log is lost.\n"
        "- GONE: the broker does not host the replica any more.\n\n"
        "An OFFLINE replica is MAKING again if its log has to be created in another directory, "
        "for example after `kraftjbod-log-dirs --forget`.",
        first=replica_states.ReplicaState.MAKING,
        transitions=replica_states.TRANSITIONS,
    ),
)

_ALLOWED_HEAD: Final = """## Operations that a directory accepts in each state

The broker refuses an operation without *yes* before it reaches the disk. Most names say what the operation does to a log; these do not:

- *start* reads and writes the files that identify the directory and its disk, before logs are opened;
- *load* opens logs, and recovers them after an unclean stop;
- *create* makes the directory of a replica, or a new segment;
- *retention* removes old segments from a log, and *delete* removes files that no log uses any more;
- *checkpoint* writes files with offsets of all logs, such as high watermarks;
- *index* rebuilds and writes the indexes of a segment;
- *undo* renames a replica's directory back after an operation that could not be completed;
- *probe* checks that the disk is still the same one and can be written.

Source: [storage/log_dirs/log_dir_policy.py](../kraftjbod/storage/log_dirs/log_dir_policy.py).
"""


def page() -> str:
    """Return docs/states.md."""
    return "\n".join([_HEAD, *map(_section, MACHINES), _ALLOWED_HEAD, *_allowed(), ""])


def _section(machine: Machine) -> str:
    return "\n".join(
        [
            f"## {machine.title}",
            "",
            f"{machine.intro}",
            f"Source: [{machine.source}](../kraftjbod/{machine.source}).",
            "",
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {_name(machine.first)}",
            *(
                f"    {_name(before)} --> {_name(after)}: {event.value}"
                for (before, event), after in machine.transitions.items()
            ),
            "```",
            "",
            *_table(machine),
            "",
        ]
    )


def _table(machine: Machine) -> Iterable[str]:
    """Yield a table with events as rows, states as columns, and next states as cells."""
    states = machine.states
    yield f"| | {' | '.join(_name(state) for state in states)} |"
    yield "|---" * (len(states) + 1) + "|"
    for event in dict.fromkeys(event for _, event in machine.transitions):
        cells = (machine.transitions.get((state, event)) for state in states)
        yield f"| {event.value} | {' | '.join(_name(c) if c else '' for c in cells)} |"


def _allowed() -> Iterable[str]:
    """Yield the table of allowed operations, with operations as rows and states as columns."""
    states = list(log_dir_state.LogDirState)
    yield f"| | {' | '.join(map(_name, states))} |"
    yield "|---" * (len(states) + 1) + "|"
    for kind in log_dir_policy.OpKind:
        cells = ("yes" if log_dir_policy.is_allowed(state, kind) else "" for state in states)
        yield f"| {kind.value} | {' | '.join(cells)} |"


def _name(state: Enum) -> str:
    return state.name
