"""Runs a client's program as a process and collects its JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.checkout import ROOT

WAIT_S: Final = 90.0
_POLL_S: Final = 0.05
_QUOTED_CHARS: Final = 3_000


class Running:
    """A running program. The constructor starts it; the end of the ``with`` block kills it."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._lines: list[tuple[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The whole process group: the program of kcat starts kcat.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def values(self, name: str) -> list[Any]:
        """Return the values of all lines named ``name`` so far, in order."""
        return [value for key, value in self._lines if key == name]

    def answers(self) -> dict[str, Any]:
        """Return the last value of each name."""
        return dict(self._lines)

    @property
    def owned(self) -> list[int]:
        """The partitions of the last assignment that the program printed."""
        return (self.values("owns") or [[]])[-1]

    @property
    def numbers(self) -> list[int]:
        """The numbers that the program has read, in order."""
        return [number for _, _, number in self.values("read")]

    def kill(self) -> None:
        """Kill the program and its children with SIGKILL and wait for its end."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def end_input(self) -> None:
        """Close the program's standard input, which asks it to stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait_until(
        self, what: str, condition: Callable[[], object], *, explain: Callable[[], str] = str
    ) -> None:
        """Poll until ``condition`` is true.

        :param explain: returns a detail for the message of a timeout.
        :raises AssertionError: the program ends before, or ``WAIT_S`` pass.
        """
        deadline = time.monotonic() + WAIT_S
        while not condition():
            ended = self._process.poll()
            if ended is not None:
                self._reader.join()
                assert condition(), f"ended with {ended} before {what}\n{self.output_excerpt()}"
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{WAIT_S:.0f} s over before {what}\n{explain()}\n{self.output_excerpt()}"
                )
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Wait until the program ends.

        :raises AssertionError: its exit code is not 0, or ``WAIT_S`` pass.
        """
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired as e:
            raise AssertionError(f"does not end\n{self.output_excerpt()}") from e
        self._reader.join()
        assert code == 0, f"ended with {code}\n{self.output_excerpt()}"

    def output_excerpt(self) -> str:
        """Return the last lines of output and of standard error, for messages of failed tests."""
        values = [each for each in self._lines if each[0] not in ("read", "sent")]
        said = "\n".join(map(str, [*values[-20:], *self._lines[-10:]]))
        return f"{said}\n--- standard error\n{self._errors.read_text()[-_QUOTED_CHARS:]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines += json.loads(line).items()


def distinct(members: Iterable[Running]) -> set[int]:
    """Return the set of numbers that the members of a group have read."""
    return {number for member in members for number in member.numbers}
