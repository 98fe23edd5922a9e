"""A broker that dies or loses a disk at the moment that a test chooses.

``python -m tests.integration.faulty_broker CONFIG`` is the real daemon with two additions that the
product does not know: its file system is an :class:`ArmedVfs`, and its events pass
:meth:`TrapDoor.on_event` first.
A test writes a :class:`Trap` into the broker's directory (:func:`arm`), even while the broker runs.
The broker looks for a new trap at each file operation and each event.

* A trap springs once, *in* the thread of the operation or event, so that nothing after that moment
  has happened yet.
* Its effects: ``kill`` (SIGKILL to itself), ``kill_pid`` (to another process, such as the
  controller), ``fail_dir`` (EIO from everything under a path from then on).
* A file records that the trap has sprung: :func:`sprung`."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import structlog

from kraftjbod.core.config import BrokerConfig
from kraftjbod.daemon.broker_server import BrokerServer
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.runner import run_daemon
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.storage.vfs import RealVfs
from tests.faults.vfs_fault import Fault, FaultVfs

COMMAND: Final = (sys.executable, "-m", "tests.integration.faulty_broker")
_TRAP: Final = "trap.json"
_SPRUNG: Final = "sprung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """The ``nth`` match of an event, or of a file operation by kind and path, and the effects.

    ``kind`` is a method of ``Vfs`` or ``VfsFile``; ``path`` is a glob for its path (the old one of
    a rename). The event must contain ``fields``."""

    event: str | None = None
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kind: str | None = None
    path: str = "*"
    nth: int = 1
    after: bool = False
    """Spring when the operation is done, with success."""
    kill: bool = False
    kill_pid: int | None = None
    fail_dir: str | None = None


def arm(broker: DaemonProcess, trap: Trap) -> None:
    """Set the trap in place of an earlier one, whose effects remain."""
    disarm(broker)
    path = broker.files.directory / _TRAP
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(asdict(trap)), encoding="utf-8")
    fresh.replace(path)


def disarm(broker: DaemonProcess) -> None:
    """Remove the trap and its trace. A running broker keeps the faults that it has."""
    for name in (_TRAP, _SPRUNG):
        (broker.files.directory / name).unlink(missing_ok=True)


def sprung(broker: DaemonProcess) -> bool:
    """Return whether the last set trap has sprung."""
    return (broker.files.directory / _SPRUNG).exists()


class TrapDoor:
    """The part inside the broker that waits for the armed trap's moment, and springs it."""

    def __init__(self, directory: Path, vfs: FaultVfs) -> None:
        self._directory = directory
        self._vfs = vfs
        self._trap: Trap | None = None
        self._version = 0
        self._seen = 0
        self._mutex = threading.RLock()

    def on_event(
        self, _: Any, __: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """A structlog processor."""

        def is_it(trap: Trap) -> bool:
            return trap.event == event["event"] and all(
                str(event.get(key)) == str(value) for key, value in trap.fields.items()
            )

        self._watch(is_it)
        return event

    def on_operation(self, kind: str, path: str, *, after: bool) -> None:
        self._watch(
            lambda trap: trap.kind == kind and trap.after == after and fnmatch(path, trap.path)
        )

    def _watch(self, is_it: Callable[[Trap], bool]) -> None:
        with self._mutex:
            self._read()
            if self._trap is None or not is_it(self._trap):
                return
            self._seen += 1
            if self._seen == self._trap.nth:
                self._spring(self._trap)

    def _read(self) -> None:
        """Read a trap that was set since the last call."""
        path = self._directory / _TRAP
        try:
            version = path.stat().st_mtime_ns
        except FileNotFoundError:
            self._trap, self._version = None, 0
            return
        if version != self._version:
            self._trap = Trap(**json.loads(path.read_text(encoding="utf-8")))
            self._version, self._seen = version, 0

    def _spring(self, trap: Trap) -> None:
        (self._directory / _SPRUNG).touch()
        if trap.fail_dir is not None:
            for path in (trap.fail_dir, f"{trap.fail_dir}/*"):
                self._vfs.inject(Fault(path=path))
        if trap.kill_pid is not None:
            os.kill(trap.kill_pid, signal.SIGKILL)
        if trap.kill:
            os.kill(os.getpid(), signal.SIGKILL)


class ArmedVfs(FaultVfs):
    """The real file system with a trap; all directories of a broker share it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(RealVfs())
        self.trap = TrapDoor(directory, self)
        self.on_operation = lambda kind, path: self.trap.on_operation(kind, path, after=False)

    def did(self, kind: str, path: str, size_bytes: int = 0) -> None:
        self.trap.on_operation(kind, path, after=True)


def _build(config: BrokerConfig, environment: Environment) -> BrokerServer:
    vfs = ArmedVfs(Path(config.metadata_dir).parent)
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[vfs.trap.on_event, *processors])
    return BrokerServer(config, dataclasses.replace(environment, make_vfs=lambda: vfs))


if __name__ == "__main__":
    sys.exit(run_daemon("broker", BrokerConfig, _build))
