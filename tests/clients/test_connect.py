"""Test of Kafka Connect: lines pass from a file through a topic to a file; a worker is killed."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS
from tests.clients.running import Running

pytestmark = pytest.mark.timeout(900)

LINES: Final = 300
NAME: Final = "connect"
#: Includes the time that Connect waits for a lost worker before it moves its connectors.
WAIT_S: Final = 180.0
_ASKED_S: Final = 20.0
_POLL_S: Final = 0.25


@pytest.mark.trial("connect-runtime (Java)", "connect")
def test_connect_with_killed_worker_copies_every_line(
    cluster: LocalCluster, run_java: Callable[..., Start], tmp_path: Path
) -> None:
    cluster.create_topic("carried", partitions=PARTITIONS)
    start, client = run_java("ConnectWorker", "-Xmx256m"), run_java("Client")
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    workers = Workers([start("worker", NAME), start("worker", NAME)])
    write(source, range(LINES))
    workers.order("source", "FileStreamSource", file=str(source), topic="carried")
    workers.order("sink", "FileStreamSink", file=str(sink), topics="carried")
    wait_for(workers, sink, LINES)
    # Kill the worker of the source while the file has unread lines.
    write(source, range(LINES, 2 * LINES))
    workers.kill(workers.places()["source"])
    write(source, range(2 * LINES, 3 * LINES))
    workers.add(start("worker", NAME))
    wait_for(workers, sink, 3 * LINES)
    reader = client("committed", "carried", 3 * LINES)
    reader.wait()
    # The sink may write lines twice that its committed offsets do not cover, as with Kafka. The
    # source is exactly once, so that the topic has each line once.
    assert sorted(reader.numbers) == list(range(3 * LINES))


def write(path: Path, numbers: range) -> None:
    with path.open("a") as file:
        file.writelines(f"{number}\n" for number in numbers)


def wait_for(workers: Workers, sink: Path, count: int) -> None:
    wanted = {str(number) for number in range(count)}

    def has_all() -> bool:
        return sink.exists() and set(sink.read_text().splitlines()) >= wanted

    workers.wait_until("the sink has all", has_all)


class Workers:
    """The workers of one Connect cluster. Requests go to the first one."""

    def __init__(self, running: list[Running]) -> None:
        self._running = running

    def add(self, running: Running) -> None:
        self._running.append(running)

    def order(self, name: str, kind: str, **settings: str) -> None:
        body = {"connector.class": kind, "tasks.max": "1", **settings}
        self.wait_until(
            f"there is {name}", lambda: self._ask(f"connectors/{name}/config", body) is not None
        )
        self.wait_until(f"{name} runs", lambda: name in self.places())

    def places(self) -> dict[str, str]:
        """Return the worker of each connector's running task, by connector."""
        return {
            name: task["worker_id"]
            for name, each in (self._ask("connectors?expand=status") or {}).items()
            for task in each["status"]["tasks"]
            if task["state"] == "RUNNING"
        }

    def kill(self, worker_id: str) -> None:
        (doomed,) = [each for each in self._running if worker_id in each.answers()["url"]]
        self._running.remove(doomed)
        doomed.kill()

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                excerpts = "\n".join(each.output_excerpt() for each in self._running)
                raise AssertionError(f"not in {WAIT_S:.0f} s: {what}\n{self.places()}\n{excerpts}")
            time.sleep(_POLL_S)

    def _ask(self, path: str, body: object = None) -> Any:
        """Send a REST request and return its JSON; None after an error, as during a rebalance."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._running[0].answers()['url']}{path}",
            data,
            {"Content-Type": "application/json"},
            method="GET" if data is None else "PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=_ASKED_S) as answer:
                return json.load(answer)
        except OSError:
            return None
