"""A client's program while it runs: its lines as they come, its end, and how it is asked to end."""

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
    """Started at once, killed at the end of the ``with`` block if it still runs."""

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
        # With what it started itself, as kcat's does.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def told(self, name: str) -> list[Any]:
        """The values of all lines of that name so far."""
        return [value for key, value in self._lines if key == name]

    def answers(self) -> dict[str, Any]:
        """The last value of each name."""
        return dict(self._lines)

    @property
    def owned(self) -> list[int]:
        """The partitions that it says it has."""
        return (self.told("owns") or [[]])[-1]

    @property
    def numbers(self) -> list[int]:
        """What it has read."""
        return [number for _, _, number in self.told("read")]

    def kill(self) -> None:
        """As a machine would that loses its power."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def end_input(self) -> None:
        """Ask it to stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait_until(
        self, what: str, is_so: Callable[[], object], *, explain: Callable[[], str] = str
    ) -> None:
        """:raises AssertionError: if it ends before, or takes too long; ``explain`` says more."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            ended = self._process.poll()
            if ended is not None:
                self._reader.join()
                assert is_so(), f"ended with {ended} before {what}\n{self.story()}"
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{WAIT_S:.0f} s over before {what}\n{explain()}\n{self.story()}"
                )
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Until it has ended, with 0."""
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired as e:
            raise AssertionError(f"does not end\n{self.story()}") from e
        self._reader.join()
        assert code == 0, f"ended with {code}\n{self.story()}"

    def story(self) -> str:
        """What it said, shortened, for a test that failed."""
        told = [each for each in self._lines if each[0] not in ("read", "sent")]
        said = "\n".join(map(str, [*told[-20:], *self._lines[-10:]]))
        return f"{said}\n--- standard error\n{self._errors.read_text()[-_QUOTED_CHARS:]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines += json.loads(line).items()


def distinct(members: Iterable[Running]) -> set[int]:
    """The numbers that the members of a group have read together."""
    return {number for member in members for number in member.numbers}
