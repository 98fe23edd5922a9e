"""Tests of the units under a systemd that is PID 1, with the steps of docs/deploy.md.

All tests share a machine. After each one all units must be active and all disks online.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.systemd import machine
from tests.systemd.debian_tree import TreeError
from tests.systemd.machine import Machine, MachineError

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(machine.why_not() is not None, reason=str(machine.why_not())),
]

CONTROLLERS: Final = tuple(f"kraftjbod-controller@{number}.service" for number in (100, 101, 102))
CONTROLLER: Final = CONTROLLERS[0]
BROKERS: Final = tuple(f"kraftjbod-broker@{number}.service" for number in (1, 2, 3))
STATE: Final = "/var/lib/kraftjbod/broker-3"
TARGET: Final = "kraftjbod.target"
BOOTSTRAP: Final = "--bootstrap-server 127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
WELL: Final = "running; log directories: 3 online, 0 impaired, 0 offline"
_TOPICS: Final = itertools.count()

#: The installed configuration with small reserves, and three disks for broker 1.
PREPARE: Final = """
cd /etc/kraftjbod
for file in *.properties; do printf "\\nlog.dir.reserve.bytes=1048576\\n" >> $file; done
for file in controller-*.properties; do
  printf "broker.session.timeout.ms=3000\\n" >> $file
done
echo log.dirs=/srv/disk-1,/srv/disk-2,/srv/disk-3 >> broker-1.properties
for n in 1 2 3; do mkdir -m 0 /srv/disk-$n; done
mount_disk() {
  mount -t tmpfs -o size=64m,uid=kraftjbod,gid=kraftjbod,mode=750 disk-$1 /srv/disk-$1
}
for n in 1 2 3; do mount_disk $n; done
id=$(kraftjbod-storage random-uuid)
for file in *.properties; do
  runuser -u kraftjbod -- kraftjbod-storage format -t $id -c $file
done
# A short watchdog interval, and restarts without delay.
mkdir -p /etc/systemd/system/kraftjbod-.service.d
printf '[Service]\\nWatchdogSec=5\\nRestartSec=100ms\\n' \
  > /etc/systemd/system/kraftjbod-.service.d/test.conf
systemctl daemon-reload
"""
ENABLE: Final = f"systemctl enable --quiet {TARGET} {' '.join((*CONTROLLERS, *BROKERS))}"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with a running cluster."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(machine.booted(tmp_path_factory.mktemp("machine")))
        except (TreeError, MachineError) as e:
            pytest.skip(f"no systemd can be PID 1 here: {e}")
        up = time.monotonic()
        made.run("make", "-C", "/src", "install")
        made.sh(PREPARE + ENABLE)
        installed = time.monotonic()
        made.run("systemctl", "start", TARGET)
        print(
            f"tree and boot {up - began:.1f} s, install and format {installed - up:.1f} s, "
            f"start until all are ready {time.monotonic() - installed:.1f} s"
        )
        yield made


@pytest.fixture(autouse=True)
def _as_it_was(host: Machine) -> Iterator[None]:
    yield
    for unit in (*CONTROLLERS, *BROKERS):
        assert host.show(unit, "ActiveState") == "active"
    for unit in BROKERS:
        host.wait(f"{unit} to be well", lambda unit=unit: status(host, unit) == WELL)  # type: ignore[misc]  # mypy cannot infer a default


def status(host: Machine, unit: str) -> str:
    return host.show(unit, "StatusText")


def wait_active(host: Machine, unit: str) -> None:
    host.wait(f"{unit} to be active", lambda: host.show(unit, "ActiveState") == "active")


def wait_failed(host: Machine, unit: str) -> None:
    host.wait(f"{unit} to fail", lambda: host.show(unit, "ActiveState") == "failed")


def start_again(host: Machine, unit: str) -> None:
    host.run("systemctl", "reset-failed", unit)
    host.run("systemctl", "start", unit)


def events(host: Machine, unit: str, name: str) -> list[dict[str, Any]]:
    """Return the events ``name`` of the current or last process of ``unit``."""
    invocation = host.show(unit, "InvocationID")
    return host.entries(f"_SYSTEMD_INVOCATION_ID={invocation}", f"KRAFTJBOD_EVENT={name}")


def write_and_read(host: Machine) -> None:
    """Write ten records to a topic of three replicas and read them back."""
    topic = f"t{next(_TOPICS)}"
    host.sh(f"seq 10 | kraftjbod-console-producer {BOOTSTRAP} --topic {topic}")
    read = host.sh(
        f"kraftjbod-console-consumer {BOOTSTRAP} --topic {topic} --from-beginning --max-messages 10"
    )
    assert sorted(map(int, read.split())) == list(range(1, 11))


def test_target_is_active_when_all_units_serve(host: Machine) -> None:
    """Type=notify: the start of the target waits for READY=1 of each unit."""
    assert host.show(TARGET, "ActiveState") == "active"
    for unit in (*CONTROLLERS, *BROKERS):
        assert host.show(unit, "SubState") == "running"
        assert host.show(unit, "User") == "kraftjbod"
    assert status(host, CONTROLLER) == "running; log directories: 1 online, 0 impaired, 0 offline"
    write_and_read(host)


def test_running_units_pass_systemd_analyze(host: Machine) -> None:
    for unit in (*CONTROLLERS, *BROKERS):
        host.run("systemd-analyze", "security", "--threshold=20", unit)
    assert host.sh("systemd-analyze verify kraftjbod.target 2>&1") == ""


def test_events_are_journal_entries_with_fields(host: Machine) -> None:
    (entry,) = events(host, BROKERS[0], "broker_started")
    assert entry["_TRANSPORT"] == "journal"
    assert entry["_SYSTEMD_UNIT"] == BROKERS[0]
    assert entry["SYSLOG_IDENTIFIER"] == "kraftjbod-broker-1"
    assert entry["PRIORITY"] == "6"
    assert entry["KRAFTJBOD_BROKER_ID"] == "1"
    assert entry["KRAFTJBOD_PORTS"] == '{"PLAINTEXT": 9092}'
    assert entry["MESSAGE"].startswith("broker_started ")


def test_failed_disk_shows_in_the_status_of_a_running_broker(host: Machine) -> None:
    started = host.show(BROKERS[0], "ExecMainStartTimestampMonotonic")
    host.sh("chmod 000 /srv/disk-2")
    dead = "running; log directories: 2 online, 0 impaired, 1 offline (/srv/disk-2)"
    host.wait("the dead disk in the status", lambda: status(host, BROKERS[0]) == dead)
    (entry,) = events(host, BROKERS[0], "log_dir_offline")[-1:]
    assert (entry["KRAFTJBOD_LOG_DIR"], entry["PRIORITY"]) == ("/srv/disk-2", "3")
    write_and_read(host)
    host.sh("chmod 750 /srv/disk-2")
    host.sh(f"kraftjbod-log-dirs {BOOTSTRAP} --reattach 1:/srv/disk-2")
    assert host.show(BROKERS[0], "ExecMainStartTimestampMonotonic") == started


def test_disk_missing_at_start_is_reattached_later(host: Machine) -> None:
    """With an empty mount point, and with a missing one."""
    disk = "/srv/disk-3"
    for without in (disk, f"{disk}-away"):
        host.run("systemctl", "stop", BROKERS[0])
        host.sh(f"mkdir /run/aside && mount --bind {disk} /run/aside && umount {disk}")
        if without != disk:
            host.sh(f"mv {disk} {without}")
        host.run("systemctl", "start", BROKERS[0])
        assert status(host, BROKERS[0]).endswith(f"1 offline ({disk})")
        if without != disk:
            host.sh(f"mv {without} {disk}")
        host.sh(f"mount --bind /run/aside {disk} && umount /run/aside && rmdir /run/aside")
        host.sh(f"kraftjbod-log-dirs {BOOTSTRAP} --reattach 1:{disk}")
        host.wait("the disk to be back", lambda: status(host, BROKERS[0]) == WELL)
        write_and_read(host)


def test_watchdog_restarts_daemon_with_hung_event_loop(host: Machine) -> None:
    """The journal has the stacks of the daemon's threads."""
    unit = BROKERS[1]
    before = int(host.show(unit, "NRestarts"))
    invocation = host.show(unit, "InvocationID")
    host.run("systemctl", "kill", "--signal=STOP", "--kill-whom=main", unit)
    host.wait("a restart", lambda: int(host.show(unit, "NRestarts")) == before + 1)
    wait_active(host, unit)
    printed = [e["MESSAGE"] for e in host.entries(f"_SYSTEMD_INVOCATION_ID={invocation}")]
    assert "Fatal Python error: Aborted" in printed
    # The event loop's thread may be missing: it runs on while the stacks are read and comes last.
    assert any("/kraftjbod/storage/" in str(line) for line in printed), printed
    write_and_read(host)


def test_killed_daemon_is_restarted(host: Machine) -> None:
    unit = BROKERS[2]
    before = int(host.show(unit, "NRestarts"))
    host.run("systemctl", "kill", "--signal=KILL", unit)
    host.wait("a restart", lambda: int(host.show(unit, "NRestarts")) == before + 1)
    wait_active(host, unit)


@pytest.mark.parametrize(
    ("spoil", "mend", "code", "why"),
    [
        (
            f"sed -i.kept s/^node.id=.*/node.id=7/ {STATE}/metadata/meta.properties",
            f"mv {STATE}/metadata/meta.properties{{.kept,}}",
            "65",
            "Stored node id 7 doesn't match",
        ),
        (
            f"mv {STATE}/metadata /root",
            f"mv /root/metadata {STATE}",
            "74",
            "metadata does not exist: mount its disk",
        ),
        (
            f"mkdir /root/d; mv {STATE}/disk-* /root/d",
            f"mv /root/d/* {STATE}; rmdir /root/d",
            "73",
            "none of the log directories can be used",
        ),
        (
            "cp /etc/kraftjbod/broker-3.properties /root;"
            "echo log.dir.io.timeout.ms=soon >> /etc/kraftjbod/broker-3.properties",
            "mv /root/broker-3.properties /etc/kraftjbod",
            "78",
            "log.dir.io.timeout.ms",
        ),
    ],
    ids=["foreign metadata", "no metadata", "no log dir", "configuration"],
)
def test_daemon_with_permanent_start_error_is_not_restarted(
    host: Machine, spoil: str, mend: str, code: str, why: str
) -> None:
    unit = BROKERS[2]
    host.run("systemctl", "stop", unit)
    host.sh(spoil)
    try:
        host.run("systemctl", "start", unit, may_fail=True)
        wait_failed(host, unit)
        assert host.show(unit, "ExecMainStatus") == code
        assert host.show(unit, "NRestarts") == "0"
        assert why in status(host, unit)
        invocation = host.show(unit, "InvocationID")
        (printed,) = host.entries(f"_SYSTEMD_INVOCATION_ID={invocation}", "_TRANSPORT=stdout")
        assert why in printed["MESSAGE"]
        assert printed["PRIORITY"] == "3"
    finally:
        host.sh(mend)
    start_again(host, unit)


def test_daemon_with_occupied_port_is_started_five_times(host: Machine) -> None:
    """Another process listens on the controller's port."""
    host.run("systemctl", "stop", CONTROLLER)
    host.run("systemctl", "reset-failed", CONTROLLER)
    host.sh(
        "systemd-run --quiet --unit=squatter python3 -c '"
        'import socket, time; s = socket.create_server(("127.0.0.1", 9090)); time.sleep(600)'
        "'"
    )
    try:
        host.wait("the port to be taken", lambda: ":2382 " in host.run("cat", "/proc/net/tcp"))
        host.run("systemctl", "start", CONTROLLER, may_fail=True)
        wait_failed(host, CONTROLLER)
        assert host.show(CONTROLLER, "ExecMainStatus") == "1"
        why = "kraftjbod-controller: cannot listen on 127.0.0.1:9090"
        printed = [str(e["MESSAGE"]) for e in host.entries(f"_SYSTEMD_UNIT={CONTROLLER}")]
        assert len([line for line in printed if line.startswith(why)]) == 5
    finally:
        host.run("systemctl", "stop", "squatter")
        start_again(host, CONTROLLER)
    write_and_read(host)


def test_uninstall_stops_brokers_before_controllers_and_keeps_configuration(host: Machine) -> None:
    """Brokers stop before the controllers that move their leaders; data and configuration stay."""
    before = {unit: host.show(unit, "InvocationID") for unit in (*CONTROLLERS, *BROKERS)}
    host.run("make", "-C", "/src", "uninstall")
    ended = {
        unit: int(entry["__MONOTONIC_TIMESTAMP"])
        for unit, invocation in before.items()
        for entry in host.entries(
            f"_SYSTEMD_INVOCATION_ID={invocation}", "KRAFTJBOD_EVENT=daemon_stopped"
        )
        if entry["KRAFTJBOD_EXIT_CODE"] == "0"
    }
    assert set(ended) == set(before)
    assert max(ended[unit] for unit in BROKERS) < min(ended[unit] for unit in CONTROLLERS)
    left = host.sh("find /etc /usr/local -not -type d -path '*kraftjbod*' -printf '%P\n' | sort")
    assert left.split() == [
        *(f"kraftjbod/broker-{number}.properties" for number in (1, 2, 3)),
        *(f"kraftjbod/controller-{number}.properties" for number in (100, 101, 102)),
        "systemd/system/kraftjbod-.service.d/test.conf",
        "systemd/system/kraftjbod-broker@.service.d/disks.conf",
    ]
    host.run("make", "-C", "/src", "install")
    host.sh(f"{ENABLE} && systemctl start {TARGET}")
    write_and_read(host)
