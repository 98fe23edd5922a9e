"""WIRE. `JobSession`: the process ``kraftjbod-pipeline session`` and its answers.

The process starts Spark once for all jobs. A failed start is reported by the first requested job,
so the part of the tour before it works without Spark. The output of the jobs goes to a log file.
The process ends at the end of its standard input, so neither it nor its Java outlives the tour.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from kraftjbod.core.errors import OperatingError

_SESSION: Final = (
    *(sys.executable, "-m", "kraftjbod.spark.pipeline_tool", "session"),
    # Adaptive execution replans each stage, which costs more than the few rows of a tour.
    *("--conf", "spark.sql.adaptive.enabled=false"),
)
_JOB_TIMEOUT_S: Final = 300.0
_STOP_TIMEOUT_S: Final = 20.0
#: Limit of a job's summary.
_MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
_LAST_WORDS_CHARS: Final = 2000

Answer = Mapping[str, Any]


class JobFailedError(OperatingError):
    """A job or tool failed or took too long; the message has the end of its output, if there is
    one.
    """


class JobSession:
    """A process that runs Spark jobs in the order of their requests.

    Call :meth:`start` before the first :meth:`ask`. Use in ``async with``, which ends the process.
    ``log`` receives the output of the jobs.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: deque[asyncio.Future[Answer]] = deque()
        self._failure: str | None = None

    @staticmethod
    def is_installed() -> bool:
        return importlib.util.find_spec("pyspark") is not None

    async def start(self) -> None:
        """Start Spark's process; it becomes ready in the background.

        No effect if it was started already, or if Spark is not installed: then :meth:`ask` must not
        be called, see :meth:`is_installed`. :meth:`ask` reports a process that cannot be started.
        """
        if self._process is not None or not self.is_installed():
            return
        try:
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *_SESSION, stdin=PIPE, stdout=PIPE, stderr=log, limit=_MOST_ANSWER_BYTES
                )
        except OSError as e:
            self._failure = f"Spark cannot be started: {e}"
        else:
            self._reading = asyncio.create_task(self._read(self._process))

    def ask(self, name: str, *options: str) -> asyncio.Future[Answer]:
        """Queue a job and return a future with its answer.

        The job's preparation starts at once; its answer follows those of earlier jobs. If the
        process cannot be started or ends first, the future fails with :class:`JobFailedError`.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # Mark exceptions as retrieved: asyncio would log them for abandoned jobs.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._failure is not None:
            answer.set_exception(JobFailedError(self._failure))
            return answer
        assert self._process is not None and self._process.stdin is not None, "it was started"
        self._asked.append(answer)
        self._process.stdin.write(f"{shlex.join((name, *options))}\n".encode())
        return answer

    async def answer(
        self, asked: asyncio.Future[Answer], *, accept: Sequence[int] = (0,)
    ) -> Answer:
        """Wait for the answer of a job that ended with one of the exit codes ``accept``.

        :raises JobFailedError: the job failed, or took more than 5 minutes.
        """
        try:
            async with asyncio.timeout(_JOB_TIMEOUT_S):
                answer = await asyncio.shield(asked)
        except TimeoutError as e:
            raise JobFailedError(f"a job was not done in {_JOB_TIMEOUT_S:.0f} s") from e
        if "error" in answer or answer["exit_code"] not in accept:
            raise JobFailedError(f"{answer['job']}: {answer.get('error', answer['exit_code'])}")
        return answer

    async def _read(self, process: Process) -> None:
        """Deliver answers to the requests in order, until the process ends."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                outcome = json.loads(line)
                answer = self._asked.popleft()
                if not answer.done():
                    answer.set_result(outcome)
            code = await process.wait()
            self._failure = f"exit code {code}: {self._last_words()}"
        except ValueError as e:  # Too long, or not JSON: a bug on either side.
            self._failure = f"an answer of Spark's jobs cannot be read: {e}"
        while self._asked:
            answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(JobFailedError(self._failure))

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-_LAST_WORDS_CHARS:]

    async def __aenter__(self) -> JobSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the process: at once if an exception ended the tour, else after its jobs."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            if kind is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
