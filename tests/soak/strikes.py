"""Injects the faults of a plan into a ``LocalCluster`` and repairs them.

The function of a fault returns when the affected broker or directory is in use again, despite
concurrent faults: a broker that stopped is started, and a directory that is offline is reattached
until it is online. Each wait is limited by :data:`BACK_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import psutil

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.gameday.faults.directory_return import bring_back
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.local_cluster import Broker, BrokerDir, ClusterTimeoutError, LocalCluster
from tests.soak import plan
from tests.soak.plan import Kind, Round, Strike

T = TypeVar("T")
Question = Callable[[ClusterClient], Coroutine[Any, Any, T]]

#: Limit for a repaired broker or directory to be in use again.
BACK_S: Final = 300.0
_NOTICED_S: Final = 30.0
_POLL_S: Final = 0.1
_STOP_S: Final = 60.0
#: Limit of one request to a broker that may have a fault.
_TRY_S: Final = 15.0


class Striker:
    """Injects rounds of faults into one cluster. Moves concern the replicas of ``topic``."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int, seed: int) -> None:
        self._cluster = cluster
        self._bootstrap = cluster.bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(seed)
        #: Several faults of a round may start and kill the same daemon.
        self._starting = threading.Lock()
        self._controllers_down: Counter[DaemonProcess] = Counter()

    def play(self, strikes: Round) -> list[str]:
        """Inject all faults, each in a thread, and wait for their repair.

        :returns: a sentence for each fault that could not be injected or repaired.
        """
        problems: list[str] = []
        threads = [
            threading.Thread(target=self._strike, args=(strike, problems), name=str(strike))
            for strike in strikes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return problems

    def mend_unstruck(self) -> int:
        """Start daemons that ended and reattach directories that are OFFLINE, as an operator does.

        Between two rounds: a machine that is slow for seconds lets operations outlast
        ``log.dir.io.timeout.ms``. Returns how many directories and daemons were mended.

        :raises KraftJbodError: a broker does not answer, or does not take the directory back.
        """
        mended = 0
        for process in (*self._cluster.controllers, *(b.process for b in self._cluster.brokers)):
            if not process.is_running:
                self._start(process)
                mended += 1
        for broker in self._cluster.brokers:
            for one in broker.dirs:
                if one.state == "offline":
                    self._wait_until_online(broker, one)
                    mended += 1
        return mended

    def _strike(self, strike: Strike, problems: list[str]) -> None:
        time.sleep(strike.after_s)
        try:
            self._action(strike.kind)(strike)
        except Exception as e:
            problems.append(f"{strike}: {type(e).__name__}: {e}")

    def _action(self, kind: Kind) -> Callable[[Strike], None]:
        return {
            plan.KILL: self._kill,
            plan.STOP: self._stop,
            plan.EIO: self._break_dir,
            plan.POWER_CUT: self._power_cut,
            plan.UNREPORTED_EIO: self._unreported_eio,
            plan.HANG: self._disturb_dir,
            plan.FULL: self._disturb_dir,
            plan.FULL_KILL: self._full_kill,
            plan.UNMOUNT: self._break_dir,
            plan.WIPE: self._wipe,
            plan.PAUSE: self._pause,
            plan.CONTROLLER_KILL: self._kill_controller,
            plan.CONTROLLER_PAUSE: self._pause_controller,
            plan.MOVES: self._move,
        }[kind]

    # --- daemons ---------------------------------------------------------------------------------

    def _kill(self, strike: Strike) -> None:
        broker = self._cluster.broker(strike.broker)
        broker.kill()
        time.sleep(strike.for_s)
        self._start(broker.process)

    def _stop(self, strike: Strike) -> None:
        """Stop the broker with SIGTERM and start it again.

        :raises ClusterTimeoutError: the broker did not stop within ``_STOP_S``.
        """
        process = self._cluster.broker(strike.broker).process
        process.terminate()
        if not _waited(lambda: not process.is_running, _STOP_S):
            raise ClusterTimeoutError(f"{process.files.name} did not stop in {_STOP_S:.0f} s")
        time.sleep(strike.for_s)
        self._start(process)

    def _pause(self, strike: Strike) -> None:
        self._suspend(self._cluster.broker(strike.broker).process, strike.for_s)

    def _pause_controller(self, strike: Strike) -> None:
        self._suspend(self._controller(strike), strike.for_s)

    def _suspend(self, process: DaemonProcess, for_s: float) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            suspended = psutil.Process(process.pid)
            suspended.suspend()
            try:
                time.sleep(for_s)
            finally:
                suspended.resume()

    def _kill_controller(self, strike: Strike) -> None:
        with self._without(self._controller(strike)):
            time.sleep(strike.for_s)

    def _controller(self, strike: Strike) -> DaemonProcess:
        controllers = self._cluster.controllers
        return controllers[strike.broker % len(controllers)]

    @contextlib.contextmanager
    def _without(self, *controllers: DaemonProcess) -> Iterator[None]:
        with self._starting:
            self._controllers_down.update(controllers)
            for controller in controllers:
                if controller.is_running:
                    controller.kill()
        try:
            yield
        finally:
            with self._starting:
                self._controllers_down.subtract(controllers)
                for controller in controllers:
                    if not self._controllers_down[controller]:
                        controller.start()

    def _start(self, process: DaemonProcess) -> None:
        with self._starting:
            if not process.is_running:
                process.start()

    # --- disks -----------------------------------------------------------------------------------

    def _break_dir(self, strike: Strike) -> None:
        broker, one = self._where(strike)
        one.fail(_disk_fault(strike))
        self._wait_until_noticed(broker, one)
        time.sleep(strike.for_s)
        one.heal()
        self._wait_until_online(broker, one)

    def _disturb_dir(self, strike: Strike) -> None:
        broker, one = self._where(strike)
        one.fail(_disk_fault(strike))
        time.sleep(strike.for_s)
        one.heal()
        self._wait_until_online(broker, one)

    def _unreported_eio(self, strike: Strike) -> None:
        """Fail the disk and request the reattachment while all controllers are down."""
        broker, one = self._where(strike)
        with self._without(*self._cluster.controllers):
            one.fail(DiskFault.EIO)
            self._wait_until_noticed(broker, one)
            one.heal()
            returning = threading.Thread(target=self._request_reattach, args=(broker, one))
            returning.start()
            time.sleep(strike.for_s)
        returning.join()
        self._wait_until_online(broker, one)

    def _power_cut(self, strike: Strike) -> None:
        broker = self._cluster.broker(strike.broker)
        for one in broker.dirs:
            one.fail(DiskFault.EIO)
        broker.kill()
        time.sleep(strike.for_s)
        for one in broker.dirs:
            one.heal()
        self._start(broker.process)

    def _full_kill(self, strike: Strike) -> None:
        broker, one = self._where(strike)
        one.fail(DiskFault.FULL)
        time.sleep(strike.for_s / 2)
        broker.kill()
        time.sleep(strike.for_s / 2)
        one.heal()
        self._start(broker.process)
        self._wait_until_online(broker, one)

    def _wipe(self, strike: Strike) -> None:
        broker, one = self._where(strike)
        one.fail(DiskFault.WIPE)
        self._wait_until_noticed(broker, one)
        time.sleep(strike.for_s)
        one.heal()
        # forget is refused while the directory has a partition's last in-sync replica.
        self._order(broker, "forget", one, but=ErrorCode.LOG_DIR_NOT_FOUND)
        self._order(broker, "add", one, but=ErrorCode.INVALID_REQUEST)
        self._wait_until_online(broker, one)

    def _move(self, strike: Strike) -> None:
        """Twice, move a random third of the broker's replicas to a random directory."""
        broker = self._cluster.broker(strike.broker)
        count = max(1, self._partitions // 3)
        for _ in range(2):
            chosen = self._rng.sample(range(self._partitions), count)
            target = self._rng.choice(broker.dirs)
            moves = {str(target.path): [TopicPartition(self._topic, number) for number in chosen]}
            # Refused moves are ignored: the fault may affect the broker or the directory.
            with contextlib.suppress(KraftJbodError, TimeoutError):
                asyncio.run(self._moved(broker.id, moves))
            time.sleep(strike.for_s / 2)

    def _where(self, strike: Strike) -> tuple[Broker, BrokerDir]:
        broker = self._cluster.broker(strike.broker)
        return broker, broker.dir(strike.dir)

    def _wait_until_noticed(self, broker: Broker, one: BrokerDir) -> None:
        """Wait until the directory is offline or the broker has ended.

        :raises ClusterTimeoutError: neither happens within ``_NOTICED_S``.
        """

        def noticed() -> bool:
            if not broker.is_running:
                return True
            try:
                return one.state == "offline"
            except KraftJbodError:
                return False

        if not _waited(noticed, _NOTICED_S):
            raise ClusterTimeoutError(f"{broker} did not notice {one} in {_NOTICED_S:.0f} s")

    def _wait_until_online(self, broker: Broker, one: BrokerDir) -> None:
        """Reattach the directory until it is online.

        The broker is started if it has ended: it stops if it leads in a failed directory and no
        controller acknowledges the failure.
        """

        async def back(client: ClusterClient) -> None:
            await client.retry(client.refresh_metadata)
            await bring_back(client, broker.id, one.path, timeout_s=_TRY_S)

        self._insist(broker, back)

    def _order(self, broker: Broker, operation: str, one: BrokerDir, *, but: ErrorCode) -> None:
        """Change the directory. The error ``but`` means that an earlier request succeeded."""
        change = LogDirChange(operation=operation, broker=broker.id, target=str(one.path))

        async def order(client: ClusterClient) -> None:
            try:
                await change_log_dir(client, change, timeout_ms=int(_TRY_S * 1000))
            except OperatingError as e:
                if e.code is not but:
                    raise

        self._insist(broker, order)

    def _insist(self, broker: Broker, question: Question[None]) -> None:
        """Repeat the request until it succeeds. Start the broker if it has ended."""
        deadline = time.monotonic() + BACK_S
        while True:
            self._start(broker.process)
            try:
                self._ask(question)
                break
            except KraftJbodError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _request_reattach(self, broker: Broker, one: BrokerDir) -> None:
        """Request the reattachment once and ignore errors."""

        async def order(client: ClusterClient) -> None:
            change = LogDirChange(operation="reattach", broker=broker.id, target=str(one.path))
            await change_log_dir(client, change, timeout_ms=int(_TRY_S * 1000))

        with contextlib.suppress(KraftJbodError):
            self._ask(order)

    async def _moved(self, broker_id: int, moves: dict[str, list[TopicPartition]]) -> None:
        async with asyncio.timeout(_TRY_S), ClusterClient(self._bootstrap) as client:
            await client.retry(client.refresh_metadata)
            await alter_replica_log_dirs(client, broker_id, moves)

    def _ask(self, question: Question[T]) -> T:
        """Run ``question`` with a new client in a new event loop."""

        async def ask() -> T:
            async with ClusterClient(self._bootstrap) as client:
                return await question(client)

        return asyncio.run(ask())


def _disk_fault(strike: Strike) -> DiskFault:
    """Return the fault with which a strike on a directory begins."""
    fault = strike.kind.faults[0]
    assert isinstance(fault, DiskFault), strike
    return fault


def _waited(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
