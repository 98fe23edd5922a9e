"""Network hosts: created if this user may, else an error with the requirements."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.local import network_hosts as hosts


def test_plan_without_permission_names_the_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartupError, match="run this as root, with iproute2 installed"):
        hosts.plan(1)
    assert hosts.command_prefix("127.0.0.1") == ()
    assert not hosts.is_own_host("127.0.0.1")
    hosts.remove(["127.0.0.1"])
    hosts.make([])


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root"
)
def test_hosts_reach_each_other_until_a_link_is_cut() -> None:
    one, two = hosts.plan(2)

    def hears() -> bool:
        # The listener ends with the first connection, or after five seconds.
        listen = "import socket; s = socket.create_server(('', 9)); s.settimeout(5); s.accept()"
        call = (
            "import socket, time\n"
            "for _ in range(8):\n"
            "    try:\n"
            f"        socket.create_connection(('{one}', 9), timeout=0.3); break\n"
            "    except OSError: time.sleep(0.1)\n"
            "else: raise SystemExit(1)\n"
        )
        with subprocess.Popen(
            [*hosts.command_prefix(one), "python3", "-c", listen], stderr=subprocess.DEVNULL
        ) as listener:
            asked = subprocess.run([*hosts.command_prefix(two), "python3", "-c", call], check=False)
            listener.terminate()
        return asked.returncode == 0

    try:
        hosts.make([one, two])
        hosts.make([one, two])
        assert hears()
        hosts.cut(one)
        assert not hears()
        hosts.mend(one)
        assert hears()
    finally:
        hosts.remove([one, two])
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert one not in left.stdout
    with pytest.raises(StartupError, match="ip -n kraftjbod-"):
        hosts.cut(one)
