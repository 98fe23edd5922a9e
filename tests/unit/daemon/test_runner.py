"""``run_daemon`` with real processes: exit codes, signals and metrics snapshots."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

import kraftjbod
from kraftjbod.core.config import ControllerConfig
from kraftjbod.daemon import runner
from kraftjbod.protocol import record_scans

_PREAMBLE = """
import asyncio, os, signal, sys
from kraftjbod.daemon import runner
from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import *
from kraftjbod.daemon.runner import run_daemon

class Daemon:
    async def start(self): pass
    async def wait_failed(self): await asyncio.Event().wait()
    async def stop(self): print("stopped", flush=True)
    def status(self): return "well"
    has_figures = True

def build(config, environment):
    environment.metrics.count("Started")
    return Mine()
"""

_CONFIG = """
process.roles=controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9
listeners=CONTROLLER://127.0.0.1:0
"""


def _run(
    tmp_path: Path,
    body: str,
    *args: str,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    conf = tmp_path / "d.properties"
    conf.write_text(_CONFIG + config)
    script = tmp_path / "daemon.py"
    end = '\nsys.exit(run_daemon("test", ControllerConfig, build))\n'
    script.write_text(_PREAMBLE + textwrap.dedent(body) + end)
    return subprocess.Popen(
        [sys.executable, str(script), str(conf), *args],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


READY = """
class Mine(Daemon):
    async def start(self): print("ready", flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_daemon_cleanly(tmp_path: Path, signum: signal.Signals) -> None:
    process = _run(tmp_path, READY)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    code, out, _ = _finish(process)
    assert (code, out) == (runner.EXIT_CLEAN, "stopped\n")


def test_daemon_raises_its_soft_limit_of_open_files(tmp_path: Path) -> None:
    """With one file per replica, a broker soon exceeds the soft limit that shells set."""
    body = """
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 256), hard))

    class Mine(Daemon):
        async def start(self):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            print(soft == hard, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
    """
    code, out, _ = _finish(_run(tmp_path, body))
    assert (code, out) == (runner.EXIT_CLEAN, "True\nstopped\n")


@pytest.mark.parametrize(
    ("failure", "code", "reported"),
    [
        ("raise StartupError('address in use')", 1, "kraftjbod-test: address in use"),
        ("raise OSError(98, 'address in use')", 1, "address in use"),
        ("raise OverloadedError('too many open files')", 1, "too many open files"),
        ("raise InconsistentStorageError('not formatted')", 65, "kraftjbod-test: not formatted"),
        ("raise ClusterUnreachableError('no answer')", 69, "kraftjbod-test: no answer"),
        ("raise NoLogDirError('all offline')", 73, "kraftjbod-test: all offline"),
        ("raise MetadataDirError('does not exist')", 74, "kraftjbod-test: does not exist"),
        ("raise ClusterRefusedError('no place')", 77, "kraftjbod-test: no place"),
        ("raise ConfigError('no such key')", 78, "kraftjbod-test: no such key"),
        ("raise UnreportedLogDirError('not reported')", 69, "log_dir_failure_unreported"),
        ("raise LastLogDirLostError('last dir lost')", 73, "storage_lost"),
        ("raise KafkaStorageError('metadata lost')", 74, "storage_lost"),
        ("raise AssertionError('a bug')", 70, "daemon_crashed"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    tmp_path: Path, failure: str, code: int, reported: str
) -> None:
    process = _run(tmp_path, f"class Mine(Daemon):\n    async def start(self): {failure}\n")
    got, out, err = _finish(process)
    assert (got, out) == (code, "stopped\n")
    assert reported in err


def test_daemon_that_ends_without_failure_exits_cleanly(tmp_path: Path) -> None:
    process = _run(tmp_path, "class Mine(Daemon):\n    async def wait_failed(self): pass\n")
    assert _finish(process)[0] == runner.EXIT_CLEAN


def test_exception_in_callback_exits_as_a_bug(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        async def start(self):
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    """
    code, _, err = _finish(_run(tmp_path, body))
    assert code == runner.EXIT_BUG
    assert "ZeroDivisionError" in err


def test_socket_error_in_callback_is_only_logged(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        async def start(self):
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "m", "exception": ConnectionResetError()})
        async def wait_failed(self): pass
    """
    code, _, err = _finish(_run(tmp_path, body))
    assert code == runner.EXIT_CLEAN
    assert "loop_complaint" in err


def test_os_error_that_ends_a_background_task_ends_the_process(tmp_path: Path) -> None:
    """A broker without its heartbeat or metadata task would continue as a zombie."""
    body = """
    from kraftjbod.broker.background import BackgroundTasks

    class Mine(Daemon):
        async def start(self):
            self.tasks = BackgroundTasks()
            self.tasks.start(self.heartbeat(), "broker_heartbeat")
        async def heartbeat(self): raise OSError(28, "No space left on device")
    """
    code, _, err = _finish(_run(tmp_path, body))
    assert code == runner.EXIT_BUG
    assert "task broker_heartbeat ended: OSError" in err


def test_hanging_stop_is_aborted_after_shutdown_timeout(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        async def wait_failed(self): pass
        async def stop(self): await asyncio.Event().wait()
    """
    code, _, err = _finish(_run(tmp_path, body, "--override", "shutdown.timeout.ms=50"))
    assert code == runner.EXIT_UNCLEAN_STOP
    assert "stop_timed_out" in err


def test_second_signal_ends_a_hanging_stop(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        async def start(self): os.kill(os.getpid(), signal.SIGTERM)
        async def stop(self):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
    """
    assert _finish(_run(tmp_path, body))[0] == runner.EXIT_UNCLEAN_STOP


def test_metrics_snapshot_is_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    body = """
    class Mine(Daemon):
        async def wait_failed(self):
            while not os.path.exists(PATH): await asyncio.sleep(0.01)
    """
    process = _run(
        tmp_path,
        f"PATH = {str(path)!r}\n{textwrap.dedent(body)}",
        config=f"metrics.snapshot.path={path}",
    )
    assert _finish(process)[0] == runner.EXIT_CLEAN
    assert json.loads(path.read_text()) == {"Started": 1}


def test_unwritable_metrics_snapshot_is_logged(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        async def wait_failed(self): await asyncio.sleep(0.1)
    """
    code, _, err = _finish(
        _run(tmp_path, body, config=f"metrics.snapshot.path={tmp_path}/absent/m.json")
    )
    assert code == runner.EXIT_CLEAN
    assert "metrics_snapshot_failed" in err


def test_unknown_key_and_key_without_effect_are_logged(tmp_path: Path) -> None:
    body = "class Mine(Daemon):\n    async def wait_failed(self): pass\n"
    config = "log.dir.queue.max.opps=1\nnum.io.threads=8\nremote.log.storage.system.enable=false\n"
    code, _, err = _finish(_run(tmp_path, body, config=config))
    assert code == runner.EXIT_CLEAN
    unknown, without_effect = map(json.loads, err.splitlines()[:2])
    assert unknown["event"] == "unknown_config_key"
    assert unknown["reason"].endswith("did you mean log.dir.queue.max.ops?")
    assert (without_effect["event"], without_effect["key"]) == (
        "config_key_without_effect",
        "num.io.threads",
    )


def test_start_with_key_that_must_not_be_ignored_fails(tmp_path: Path) -> None:
    body = "class Mine(Daemon):\n    async def wait_failed(self): pass\n"
    code, _, err = _finish(_run(tmp_path, body, config="create.topic.policy.class.name=a.Policy"))
    assert code == runner.EXIT_CONFIG
    assert "create.topic.policy.class.name is a.Policy: no class can be loaded here" in err


def test_start_with_unsupported_security_key_fails(tmp_path: Path) -> None:
    body = "class Mine(Daemon):\n    async def wait_failed(self): pass\n"
    code, _, err = _finish(_run(tmp_path, body, config="ssl.provider=SunJSSE"))
    assert code == runner.EXIT_CONFIG
    assert "ssl.provider configures security" in err


def test_telemetry_path_receives_the_events(tmp_path: Path) -> None:
    body = "class Mine(Daemon):\n    async def wait_failed(self): pass\n"
    process = _run(tmp_path, body, config=f"telemetry.path={tmp_path}/events.json")
    code, _, err = _finish(process)
    assert (code, err) == (runner.EXIT_CLEAN, "")
    assert json.loads((tmp_path / "events.json").read_text())["event"] == "daemon_stopped"


def test_unread_stderr_and_hanging_disk_do_not_block_the_daemon(tmp_path: Path) -> None:
    """Before, the event loop and the stop waited once the pipe was full."""
    body = """
    from kraftjbod.core.telemetry import get_logger

    class Mine(Daemon):
        async def start(self):
            for number in range(20_000):
                get_logger().warning("something_happened", number=number, why="x" * 100)
            await asyncio.sleep(0.1)
            print("ready", flush=True)
    """
    os.mkfifo(tmp_path / "figures.json.tmp")
    config = f"metrics.snapshot.path={tmp_path}/figures.json\nmetrics.snapshot.interval.ms=100\n"
    unread, stderr = os.pipe()
    process = _run(tmp_path, body, config=config, stderr=stderr)
    os.close(stderr)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, out, _ = _finish(process)
    assert (code, out) == (runner.EXIT_CLEAN, "stopped\n")
    os.close(unread)


def test_unreadable_config_prints_one_line_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = runner.run_daemon(
        "test", ControllerConfig, _never_build, [str(tmp_path / "absent.properties")]
    )
    reported = capfd.readouterr().err
    assert code == runner.EXIT_CONFIG
    assert reported.startswith("kraftjbod-test: cannot read")
    assert reported.count("\n") == 1


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "controller-1", "::"])
def test_listener_between_nodes_that_other_hosts_reach_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], host: str
) -> None:
    conf = tmp_path / "d.properties"
    bound = f"[{host}]" if ":" in host else host
    conf.write_text(_CONFIG.replace("127.0.0.1:0", f"{bound}:9090"))
    code = runner.run_daemon("test", ControllerConfig, _never_build, [str(conf)])
    assert code == runner.EXIT_CONFIG
    reported = capfd.readouterr().err
    for way in ("cluster.node.principals", "127.0.0.1", "allow.insecure.cluster.listener=true"):
        assert way in reported


def test_override_without_value_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "d.properties"
    conf.write_text("a=b")
    code = runner.run_daemon(
        "test", ControllerConfig, _never_build, [str(conf), "--override", "node.id"]
    )
    assert code == runner.EXIT_CONFIG
    assert "expected KEY=VALUE" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words", [["--override", "node.id", "canary"], ["--overide=node.id=canary"]]
)
def test_unknown_words_of_command_line_are_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The standard error of a daemon is in the journal, and the words may contain a password."""
    with pytest.raises(SystemExit) as left:
        runner.run_daemon("test", ControllerConfig, _never_build, [str(tmp_path / "x"), *words])
    assert left.value.code == 2
    printed = capfd.readouterr().err
    assert "canary" not in printed
    assert "unknown words of the command line: 1, " in printed


def test_override_of_password_must_be_a_reference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "d.properties"
    conf.write_text(_CONFIG)
    for value, message in (("${cred:x}", "CREDENTIALS_DIRECTORY is not set"), ("x", "--override")):
        words = [str(conf), "--override", f"ssl.key.password={value}"]
        assert runner.run_daemon("test", ControllerConfig, _never_build, words) == 78
        assert message in capfd.readouterr().err


def test_python_with_option_o_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-O",
            "-c",
            "import sys; from kraftjbod.daemon.runner import run_daemon;"
            "sys.exit(run_daemon('test', None, None, ['x']))",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == runner.EXIT_CONFIG
    assert "python -O" in done.stderr


def _never_build(*_: object) -> runner.Daemon:
    raise AssertionError("must not be built")


def test_service_manager_is_notified_of_every_step(tmp_path: Path) -> None:
    """The test's socket receives the notifications that systemd would, in this order."""
    notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify_socket.bind(str(tmp_path / "notify"))
    notify_socket.settimeout(30)
    body = """
    class Mine(Daemon):
        state = "starting"
        async def start(self): await asyncio.sleep(0.1); self.state = "running"
        def status(self): return self.state
    """
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": notify_socket.getsockname(),
        "WATCHDOG_USEC": "100000",
    }
    process = _run(tmp_path, body, environment=environment)
    reported: list[str] = []
    while "READY=1" not in reported or reported[-1] != "WATCHDOG=1":
        reported += notify_socket.recv(4096).decode().split("\n")
    process.send_signal(signal.SIGTERM)
    assert _finish(process)[0] == runner.EXIT_CLEAN
    while "STOPPING=1" not in reported:
        reported += notify_socket.recv(4096).decode().split("\n")
    notify_socket.close()
    steps = [fact for fact in reported if fact != "WATCHDOG=1"]
    assert steps == ["STATUS=starting", "READY=1", "STATUS=running", "STOPPING=1"]


@pytest.mark.parametrize(
    "body",
    [
        "class Mine(Daemon):\n    async def start(self): raise StartupError('in use')\n",
        "class Mine(Daemon):\n    async def start(self): raise KafkaStorageError('in use')\n",
        "def build(config, environment): raise StartupError('in use')\n",
    ],
)
def test_last_status_for_service_manager_is_the_reason_of_the_end(
    tmp_path: Path, body: str
) -> None:
    notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify_socket.bind(str(tmp_path / "notify"))
    notify_socket.settimeout(30)
    environment = {**os.environ, "NOTIFY_SOCKET": notify_socket.getsockname()}
    code, _, _ = _finish(_run(tmp_path, body, environment=environment))
    assert code != 0
    while notify_socket.recv(4096).decode() != "STATUS=in use":
        pass
    notify_socket.close()


def test_events_go_to_the_journal_if_standard_error_does(tmp_path: Path) -> None:
    """JOURNAL_STREAM names the socket of the journal's stream. Without it, events go to stderr."""
    ours, theirs = socket.socketpair()
    found = os.fstat(theirs.fileno())
    body = """
    from kraftjbod.daemon.process import journal
    runner.Journal = lambda name: journal.Journal(name, address=ADDRESS)
    class Mine(Daemon):
        async def wait_failed(self): pass
    """
    notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify_socket.bind(str(tmp_path / "journal"))
    notify_socket.settimeout(30)
    script = f"ADDRESS = {notify_socket.getsockname()!r}\n{textwrap.dedent(body)}"
    named = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    with ours, theirs, notify_socket:
        process = _run(tmp_path, script, environment=named, stderr=theirs.fileno())
        assert _finish(process)[0] == runner.EXIT_CLEAN
        lines = notify_socket.recv(4096).decode().splitlines()
    assert lines[:3] == [
        "PRIORITY=6",
        "SYSLOG_IDENTIFIER=kraftjbod-test-1",
        "MESSAGE=daemon_stopped daemon=test exit_code=0",
    ]
    process = _run(tmp_path, script, environment=named)
    assert "daemon_stopped" in _finish(process)[2]


def test_failing_status_exits_as_a_bug(tmp_path: Path) -> None:
    body = """
    class Mine(Daemon):
        def status(self): raise RuntimeError("no idea")
    """
    notify_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify_socket.bind(str(tmp_path / "notify"))
    environment = {**os.environ, "NOTIFY_SOCKET": notify_socket.getsockname()}
    code, out, err = _finish(_run(tmp_path, body, environment=environment))
    notify_socket.close()
    assert (code, out) == (runner.EXIT_BUG, "stopped\n")
    assert "no idea" in err


@pytest.mark.parametrize("name", ["broker", "controller"])
def test_daemon_version_option_prints_the_form_of_the_byte_scans(name: str) -> None:
    command = (sys.executable, "-m", f"kraftjbod.daemon.{name}_server", "--version")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    reported = f"kraftjbod-{name} {kraftjbod.__version__}, byte scans: {record_scans.FORM}\n"
    assert done.stdout == reported
