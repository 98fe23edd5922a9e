"""WIRE. The common part of both daemons: event loop, signals, clock, randomness and exit codes.

``run_daemon`` reads the configuration file, builds one :class:`Daemon` and runs it:

* The runner calls ``start()``, then ``wait_failed()`` while the daemon serves, and ``stop()``
  exactly once at the end.
* SIGTERM or SIGINT requests an orderly stop. A second signal ends the process at once.
* An unexpected exception is a bug: it is logged and ends the process.

Two failures have different exit codes if an operator has to act differently. Codes below 64 are
the shell's, the others are those of BSD's sysexits.h. The column "again" says whether another start
may succeed. ``conf/systemd`` does not restart a daemon after a code with "no".

==== ===== =======================================================================================
code again meaning, and what to do
==== ===== =======================================================================================
0    -     stopped as requested
1    yes   could not start for now: an address in use, a directory that another process holds, no
           space for a new controller's reserve, too few descriptors; stderr says which
2    no    wrong command line
65   no    a disk has the wrong content: not formatted, of another cluster or node, two directories
           with one id, damaged metadata; mount the right disk, format or restore it
69   yes   no controller could be reached for too long; check the controllers and the network
70   yes   a bug; the telemetry has the traceback
73   no    the last log directory is lost, or none could be used; repair a disk
74   no    the metadata directory is lost; repair its disk or restore it
75   yes   the stop took longer than its deadline, or a second signal ended it
77   no    the cluster refuses this node; stderr has the reason
78   no    the configuration is wrong; the line on stderr names the key
==== ===== =======================================================================================

Only this file creates the real event loop, and only process/environment.py the real clock and
randomness. All other code receives them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

import uvloop

from kraftjbod.core import telemetry
from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import ConfigType, KeyedModel, config_types
from kraftjbod.core.config_references import (
    ResolvedValues,
    declared_providers,
    is_one_reference,
    resolve_references,
)
from kraftjbod.core.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    ConfigError,
    InconsistentStorageError,
    KafkaStorageError,
    LastLogDirLostError,
    MetadataDirError,
    NoLogDirError,
    OverloadedError,
    StartupError,
    UnreportedLogDirError,
)
from kraftjbod.core.kafka_keys import ignored_keys
from kraftjbod.core.listener_config import key_without_listener
from kraftjbod.core.peer_warnings import PeerWarnings
from kraftjbod.core.properties import parse_properties
from kraftjbod.core.reference_reader import DynamicReferences, ReferenceReader
from kraftjbod.core.telemetry import Logger, Metrics, get_logger
from kraftjbod.core.version import package_version
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.process.journal import Journal, is_journal
from kraftjbod.daemon.process.line_writer import LineWriter
from kraftjbod.daemon.process.metrics_snapshots import MetricsSnapshots
from kraftjbod.daemon.process.service_manager import ServiceManager, this_service
from kraftjbod.protocol import record_scans

C = TypeVar("C", BrokerConfig, ControllerConfig)

EXIT_CLEAN: Final = 0
EXIT_STARTUP: Final = 1
EXIT_INCONSISTENT_STORAGE: Final = 65
EXIT_CLUSTER_UNREACHABLE: Final = 69
EXIT_BUG: Final = 70
EXIT_LOG_DIRS_LOST: Final = 73
EXIT_METADATA_DIR_LOST: Final = 74
EXIT_UNCLEAN_STOP: Final = 75
EXIT_REFUSED: Final = 77
EXIT_CONFIG: Final = 78
#: The first matching class determines the code.
_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (ConfigError, EXIT_CONFIG),
    (InconsistentStorageError, EXIT_INCONSISTENT_STORAGE),
    (MetadataDirError, EXIT_METADATA_DIR_LOST),
    (NoLogDirError, EXIT_LOG_DIRS_LOST),
    (ClusterUnreachableError, EXIT_CLUSTER_UNREACHABLE),
    (ClusterRefusedError, EXIT_REFUSED),
    (LastLogDirLostError, EXIT_LOG_DIRS_LOST),
    (UnreportedLogDirError, EXIT_CLUSTER_UNREACHABLE),
    (KafkaStorageError, EXIT_METADATA_DIR_LOST),
)

#: Maximum time that a computing thread keeps the interpreter from other threads. With Python's
#: default of 5 ms, one request in a hundred waits that long for a directory's thread.
_THREAD_SWITCH_S: Final = 0.0002
_STDERR: Final = 2
#: How long the process waits at its end until the last lines are written.
_LAST_LINES_S: Final = 2.0
_PEER_WARNINGS_S: Final = 10.0


class Daemon(Protocol):
    """A controller or a broker, as the runner uses it."""

    async def start(self) -> None:
        """Start; return when the daemon serves requests, or earlier if it requests an orderly stop.

        :raises StartupError: the daemon cannot start; the runner prints the message for the
            operator.
        :raises KafkaStorageError: a disk that the daemon needs was lost during the start.
        """
        ...

    async def wait_failed(self) -> None:
        """Wait while the daemon runs; return when it requests an orderly stop.

        :raises KafkaStorageError: the metadata directory or the last log directory is lost, or a
            lost log directory could not be reported to a controller.
        :raises StartupError: the cluster refuses this daemon permanently.
        """
        ...

    async def stop(self) -> None:
        """Close the parts in the reverse order of their start; also called after a failed start.

        A broker first moves its leaders away, then closes its coordinators, then its listeners.
        """
        ...

    def status(self) -> str:
        """Return the state in one line, for ``systemctl status``; may be called at any time."""
        ...

    @property
    def has_figures(self) -> bool:
        """Whether every metric of the daemon is registered."""
        ...


def run_daemon(
    name: str,
    config_type: type[C],
    build: Callable[[C, Environment], Daemon],
    argv: Sequence[str] | None = None,
) -> int:
    """Run one daemon in this process from its configuration to its end.

    :param name: ``"broker"`` or ``"controller"``.
    :param build: create the daemon from its configuration; may raise :class:`StartupError`.
    :param argv: ``CONFIG_FILE [--override KEY=VALUE ...]``; default: the process's arguments.
        Relative paths in the configuration are relative to the working directory.
    :returns: the exit code of the process. A :class:`StartupError` is reported and becomes an exit
        code; it is not raised.
    """
    with contextlib.ExitStack() as files:
        service = ServiceManager(None, None)
        try:
            service = files.enter_context(contextlib.closing(this_service()))
            _require_assertions()
            source, properties = _read_properties(name, config_type, argv)
            reader = ReferenceReader(os.environ, os.getcwd())
            resolved = resolve_references(properties, reader.read_reference, source=source)
            config = _parsed(config_type, resolved, source)
            peers = PeerWarnings(time.monotonic)
            _send_telemetry(name, config, files, peers)
            log = get_logger(daemon=name)
            _report_ignored_keys(log, config_type, resolved.values, source)
            _report_open_files(log, reader, config_type, properties, source)
            _allow_many_open_files()
            providers = declared_providers(properties, source=source)
            references = DynamicReferences(providers, os.environ, os.getcwd())
            environment = Environment(references=references)
            daemon = build(config, environment)
        except StartupError as e:
            service.notify_status(str(e))
            return _refuse(name, e)
        sys.setswitchinterval(_THREAD_SWITCH_S)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                DaemonLife(name, daemon, config, environment.metrics, service, peers).live()
            )


def _report_ignored_keys(
    log: Logger,
    config_type: type[BrokerConfig | ControllerConfig],
    properties: Mapping[str, str],
    source: str,
) -> None:
    for ignored in ignored_keys(config_type, properties):
        if ignored.reason is not None:
            key, reason = ignored.key, ignored.reason
            log.info("config_key_without_effect", key=key, reason=reason, source=source)
        else:
            log.warning("unknown_config_key", key=ignored.key, reason=str(ignored), source=source)


def _parsed(config_type: type[C], resolved: ResolvedValues, source: str) -> C:
    """Return the configuration of a daemon.

    :raises ConfigError: naming the keys with wrong values; without texts from references.
    """
    try:
        config = config_type.from_properties(resolved.values, source=source, base_dir=os.getcwd())
        config.require_closed_cluster_listeners()
    except ConfigError as e:
        if not resolved.texts:
            raise
        # The cause would have the texts in its traceback.
        raise ConfigError(resolved.redacted(str(e))) from None
    return config


def _report_open_files(
    log: Logger,
    reader: ReferenceReader,
    config_type: type[KeyedModel],
    properties: Mapping[str, str],
    source: str,
) -> None:
    """Log files with secrets that every user of this host can read."""
    open_files: dict[str, list[str]] = {path: [] for path in reader.open_files}
    keys = sorted(
        key
        for key, value in properties.items()
        if _is_password(config_type, key) and value and not is_one_reference(value)
    )
    with contextlib.suppress(OSError):  # Removed since it was read, or a pipe.
        if keys and os.stat(source).st_mode & stat.S_IROTH:
            open_files[source] = keys
    for path, keys in sorted(open_files.items()):
        log.warning("secret_readable_by_others", path=path, keys=keys)


def _allow_many_open_files() -> None:
    """Raise the soft limit of open files to the hard limit.

    The soft limit is often 1,024, and each replica in use keeps a file open.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class DaemonLife:
    """Runs one daemon in the event loop, from its start to the exit code.

    :param say: print a line that tells the operator why the daemon could not start; default: to
        standard error.
    """

    def __init__(
        self,
        name: str,
        daemon: Daemon,
        config: BrokerConfig | ControllerConfig,
        metrics: Metrics,
        service: ServiceManager,
        peer_warnings: PeerWarnings,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._name = name
        self._say = say or _say_on_stderr
        self._peer_warnings = peer_warnings
        self._daemon = daemon
        self._config = config
        self._metrics = metrics
        self._service = service
        self._log = get_logger(daemon=name)
        self._stop_wanted = asyncio.Event()
        self._crash: BaseException | None = None
        self._started = False
        #: The error that ended the daemon, for ``systemctl status``.
        self._last_words: str | None = None

    async def live(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_exception)
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)
        attending = asyncio.create_task(self._attend_service())
        code = await self._until_the_end()
        self._service.notify(STOPPING="1")
        stopped_in_time = await self._stop()
        if code == EXIT_CLEAN and self._crash is not None:
            code = EXIT_BUG
        if code == EXIT_CLEAN and not stopped_in_time:
            code = EXIT_UNCLEAN_STOP
        attending.cancel()
        if self._last_words is not None:
            self._service.notify_status(self._last_words)
        self._log.info("daemon_stopped", exit_code=code)
        return code

    async def _attend_service(self) -> None:
        """Report to the service manager until cancelled. The watchdog needs beats during a stop
        too."""
        try:
            await self._service.attend(self._daemon.status)
        except Exception as e:
            self._log_crash(e)
            self._stop_wanted.set()

    async def _until_the_end(self) -> int:
        try:
            await self._until_signal_or_failure()
        except StartupError as e:
            return self._refuse(e)
        except KafkaStorageError as e:
            if isinstance(e, UnreportedLogDirError):
                self._log.error("log_dir_failure_unreported", reason=e.message)
            else:
                self._log.error("storage_lost", reason=e.message)
            self._last_words = e.message
            return _exit_code(e)
        except (OSError, OverloadedError) as e:
            if not self._started:
                return self._refuse(e)
            self._log_crash(e)
            return EXIT_BUG
        except Exception as e:
            self._log_crash(e)
            return EXIT_BUG
        return EXIT_CLEAN

    def _refuse(self, why: Exception) -> int:
        self._last_words = str(why)
        return _refuse(self._name, why, self._say)

    async def _until_signal_or_failure(self) -> None:
        life = asyncio.create_task(self._start_and_watch())
        tasks: set[asyncio.Task[Any]] = {life, asyncio.create_task(self._stop_wanted.wait())}
        tasks.add(asyncio.create_task(self._settle_peer_warnings()))
        if self._config.metrics_snapshot_path is not None:
            snapshots = MetricsSnapshots(
                Path(self._config.metrics_snapshot_path),
                self._metrics,
                interval_ms=self._config.metrics_snapshot_interval_ms,
                is_complete=lambda: self._daemon.has_figures,
            )
            tasks.add(asyncio.create_task(snapshots.write_snapshots()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_and_watch(self) -> None:
        await self._daemon.start()
        self._started = True
        self._service.notify_status(self._daemon.status(), READY="1")
        await self._daemon.wait_failed()

    async def _stop(self) -> bool:
        """Stop the daemon; return False if the deadline ``shutdown.timeout.ms`` ended the stop."""
        try:
            async with asyncio.timeout(self._config.shutdown_timeout_ms / 1000):
                await self._daemon.stop()
        except TimeoutError:
            self._log.error("stop_timed_out", timeout_ms=self._config.shutdown_timeout_ms)
            return False
        except Exception as e:
            self._log_crash(e)
        return True

    async def _settle_peer_warnings(self) -> None:
        """Log how often each warning about a peer was suppressed, once it has stopped; never
        return."""
        while True:
            await asyncio.sleep(_PEER_WARNINGS_S)
            for event, host, times in self._peer_warnings.settle():
                self._log.info("peer_warnings_left_out", of=event, host=host, times=times)

    def _on_signal(self, signum: int) -> None:
        if self._stop_wanted.is_set():
            os._exit(EXIT_UNCLEAN_STOP)
        self._stop_wanted.set()

    def _on_loop_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of a callback or task: log it if it is a socket's, else end the daemon as
        a bug."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            self._log.warning("loop_complaint", message=context.get("message"), reason=str(error))
            return
        self._log_crash(error)
        self._stop_wanted.set()

    def _log_crash(self, error: BaseException) -> None:
        self._crash = error
        self._log.error("daemon_crashed", exc_info=error)


class _PrintVersion(argparse.Action):
    """The option ``--version``, which reads the version only on demand, because reading takes
    time."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{parser.prog} {record_scans.with_form(package_version())}")
        parser.exit()


def _read_properties(
    name: str, config_type: type[KeyedModel], argv: Sequence[str] | None
) -> tuple[str, dict[str, str]]:
    """Return the path of the configuration file, and its properties with the overrides applied.

    :raises ConfigError: the file cannot be read or parsed, or an override is malformed or is a
        password.
    """
    parser = argparse.ArgumentParser(prog=f"kraftjbod-{name}")
    parser.add_argument("config", type=Path, help="path of the daemon's .properties file")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replaces one key of the file; may be repeated",
    )
    parser.add_argument("--version", action=_PrintVersion, help="print the version")
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        # argparse would print the words, which may contain a password, to the journal.
        parser.error(
            f"unknown words of the command line: {len(unknown)}, not repeated here because "
            "they may be secret: write CONFIG_FILE --override KEY=VALUE"
        )
    try:
        text = options.config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {options.config}: {e}") from e
    properties = parse_properties(text, str(options.config))
    for override in options.override:
        key, equals, value = override.partition("=")
        key = key.strip()
        if not equals:
            # The text may contain a password, so only its first word is printed.
            raise ConfigError(f"--override {key.partition(' ')[0]}: expected KEY=VALUE")
        if _is_password(config_type, key) and not is_one_reference(value):
            raise ConfigError(
                f"--override {key}: other users of this host can read command lines: write "
                f"passwords and keys into {options.config}, or a reference such as ${{cred:NAME}}"
            )
        properties[key] = value.strip()
    return str(options.config), properties


def _is_password(config_type: type[KeyedModel], key: str) -> bool:
    kind = config_types(config_type).get(key_without_listener(key))
    return kind is ConfigType.PASSWORD


def _send_telemetry(
    name: str,
    config: BrokerConfig | ControllerConfig,
    files: contextlib.ExitStack,
    peers: PeerWarnings,
) -> None:
    """Configure telemetry: to ``telemetry.path``, else to the journal, else to standard error.

    :param files: closes the stream or the journal at the end of the process.
    :raises ConfigError: ``telemetry.path`` cannot be opened.
    """
    stream, sink, is_json = None, None, config.telemetry_format == "json"
    if config.telemetry_path is None and is_journal(_STDERR, os.environ):
        journal = Journal(f"kraftjbod-{name}-{config.node_id}")
        sink = files.enter_context(contextlib.closing(journal)).take
    else:
        fd = _STDERR if config.telemetry_path is None else _open_telemetry(config.telemetry_path)
        stream = LineWriter(fd, partial(_dropped_line, is_json=is_json))
        files.callback(stream.close, _LAST_LINES_S)
    telemetry.configure(
        json_lines=is_json,
        level=config.telemetry_level,
        stream=stream,
        sink=sink,
        peer_warnings=peers,
    )


def _dropped_line(count: int, *, is_json: bool) -> str:
    event = {"event": "telemetry_dropped", "level": "warning", "events": count}
    if is_json:
        return json.dumps(event) + "\n"
    return f"[warning  ] telemetry_dropped events={count}\n"


def _open_telemetry(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise ConfigError(f"telemetry.path: {e}") from e


def _require_assertions() -> None:
    if not __debug__:
        raise ConfigError("python -O strips the assertions that guard the data; run without -O")


def _say_on_stderr(line: str) -> None:
    """Write ``line`` to standard error. Return after two seconds at most, even if it blocks."""
    writer = LineWriter(_STDERR, lambda count: "")
    writer.write(line)
    writer.close(_LAST_LINES_S)


def _refuse(name: str, why: Exception, say: Callable[[str], None] = _say_on_stderr) -> int:
    """Print why the daemon cannot start or continue, with ``say``; return the exit code for it."""
    say(f"kraftjbod-{name}: {why}\n")
    return _exit_code(why)


def _exit_code(error: Exception) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_STARTUP)
