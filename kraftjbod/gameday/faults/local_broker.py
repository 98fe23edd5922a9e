"""WIRE. Verification that a broker's directories and process on this machine may be broken.

A fault touches only verified targets. A directory must have the id in its ``meta.properties`` that
the broker reports. A process must listen on the broker's port and have a file open below one of
the broker's directories.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.faults.fault import CannotPlay
from kraftjbod.local.cluster_process import directory_id

_ADVICE: Final = "run it on the broker's host, as root or as the broker's user, or use --observe"
_LISTENS: Final = "0A"
_IGNORES_MODES: Final = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
_METADATA_LOG: Final = "__cluster_metadata-0"


def require_own_directory(victim: Victim) -> None:
    """Require that ``victim.path`` on this machine is the log directory of the victim's broker.

    :raises CannotPlay: the directory has another id, no id, or another owner.
    """
    where = f"{victim.path} of broker {victim.broker_id}"
    if victim.directory_id is None:
        raise CannotPlay(
            f"{where} has no id that could be compared: not a broker of kraftjbod; use --observe"
        )
    here, reported = directory_id(victim.path), str(victim.directory_id)
    if here is None:
        raise CannotPlay(f"{where} cannot be read on this machine: {_ADVICE}")
    if here != reported:
        raise CannotPlay(
            f"{where} has the id {reported}, but the one on this machine has {here}: {_ADVICE}"
        )
    if os.geteuid() not in (0, victim.path.stat().st_uid):
        raise CannotPlay(f"{where} belongs to another user: {_ADVICE}")


def first_breakable(found: Sequence[Victim]) -> Victim:
    """Return the first directory whose loss its broker survives: not the only one, no metadata.

    :raises CannotPlay: there is no such directory, or it is not on this machine.
    """
    dirs = Counter(victim.broker_id for victim in found)
    for victim in found:
        if dirs[victim.broker_id] > 1:
            require_own_directory(victim)
            if not (victim.path / _METADATA_LOG).exists():
                return victim
    raise CannotPlay(
        "no broker has two log directories that are online, one of them without its metadata: "
        "no disk can be taken from any of them"
    )


def require_broker_process(broker_id: int, port: int, log_dirs: Iterable[Path]) -> int:
    """Return the pid of the broker that listens on ``port`` of this machine.

    :raises CannotPlay: no such process exists, or it has no file open below ``log_dirs``.
    """
    pid = _listener(port)
    if pid is None:
        raise CannotPlay(
            f"no process that can be examined listens on port {port} of this machine, so broker "
            f"{broker_id} cannot be found: {_ADVICE}"
        )
    roots = tuple(f"{path}/" for path in log_dirs)
    if not any(path.startswith(roots) for path in _open_files(pid)):
        raise CannotPlay(
            f"process {pid} listens on port {port} but has no file of broker {broker_id} open, so "
            f"it is taken for another one: {_ADVICE}"
        )
    return pid


def ignores_modes(pid: int) -> bool:
    """Return whether the process has the capability to ignore file modes."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        (word,) = (line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(word, 16) & _IGNORES_MODES)


def _listener(port: int) -> int | None:
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not wanted.isdisjoint(_open_files(int(entry.name))):
            return int(entry.name)
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for network in _networks():
        for table in (network / "tcp", network / "tcp6"):
            with contextlib.suppress(OSError):
                for line in table.read_text(encoding="ascii").splitlines()[1:]:
                    _, local, _, state, *rest = line.split()
                    if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                        yield rest[5]


def _networks() -> Iterable[Path]:
    """Return the connection tables of this machine's network namespaces."""
    found: dict[str, Path] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.setdefault(os.readlink(entry / "ns" / "net"), entry / "net")
    return found.values() or [Path("/proc/net")]


def _open_files(pid: int) -> list[str]:
    """Return the open files of the process; none if it ended or belongs to another user."""
    found = []
    gone = (PermissionError, FileNotFoundError, ProcessLookupError)
    with contextlib.suppress(*gone):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            # Continue after a file that was closed meanwhile.
            with contextlib.suppress(*gone):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
