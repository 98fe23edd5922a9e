"""WIRE. ``ServiceManager``: reports readiness, status and watchdog beats of a daemon to systemd.

The protocol is sd_notify's: datagrams of ``KEY=VALUE`` lines to the socket that ``NOTIFY_SOCKET``
names. Without that variable nothing is sent. The event loop sends the watchdog beats, so that
systemd kills a broker whose loop hangs, and not one whose disk hangs.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log_dirs.log_dir import LogDir

#: Beats per watchdog interval, as systemd recommends.
_BEATS: Final = 2
#: How often the status is checked, also without a watchdog.
_STATUS_S: Final = 1.0
_MAX_STATUS_CHARS: Final = 500


class ServiceManager:
    """Client of the service manager that started this process.

    :param address: its socket: a path, or ``@`` and an abstract name. None: nothing is sent.
    :param watchdog_s: longest time between two beats, in seconds; None without a watchdog.
    """

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._socket: socket.socket | None = None
        self._log = get_logger(component="service_manager")
        self._is_heard = True
        #: Values that could not be sent yet. A newer value replaces an older one of the same key.
        self._unsent: dict[str, str] = {}
        self._status: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Create a client from ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

        :param pid: id of this process. The watchdog of another ``WATCHDOG_PID`` is ignored.
        :raises ConfigError: a malformed value.
        """
        address = environment.get("NOTIFY_SOCKET")
        if not address:
            return cls(None, None)
        if address[0] not in "/@":
            raise ConfigError(f"NOTIFY_SOCKET={address}: expected a path, or @ and a name")
        watchdog_s = None
        interval_us = environment.get("WATCHDOG_USEC")
        if interval_us and environment.get("WATCHDOG_PID", str(pid)) == str(pid):
            if not interval_us.isdigit() or int(interval_us) == 0:
                raise ConfigError(f"WATCHDOG_USEC={interval_us}: expected microseconds, above 0")
            watchdog_s = int(interval_us) / 1e6
        return cls(address, watchdog_s)

    def notify(self, **facts: str) -> None:
        """Send the values ``facts`` at once, in one datagram.

        Values that cannot be sent are kept and sent with the next ones. The first failure is
        logged.
        """
        if self._address is None:
            return
        self._unsent |= facts
        text = "\n".join(f"{key}={value}" for key, value in self._unsent.items())
        try:
            self._connected(self._address).send(text.encode())
        except OSError as e:
            if self._is_heard:
                self._log.warning("service_manager_unreachable", reason=str(e))
            self._is_heard = False
        else:
            self._is_heard = True
            self._unsent.clear()

    def notify_status(self, text: str, **facts: str) -> None:
        """Send ``text`` as the status line for ``systemctl status``, and the values ``facts``.

        The text is cut at 500 characters, and sent only if it has changed.
        """
        if text != self._status:
            facts["STATUS"] = text.replace("\n", " ")[:_MAX_STATUS_CHARS]
            self._status = text
        if facts or self._unsent:
            self.notify(**facts)

    async def attend(self, status: Callable[[], str]) -> None:
        """Send each new status and the watchdog beats, until cancelled. Return at once without an
        address.

        :param status: return the current status line; called at least once a second.
        """
        if self._address is None:
            return
        beat_s = _STATUS_S if self._watchdog_s is None else self._watchdog_s / _BEATS
        beat = {} if self._watchdog_s is None else {"WATCHDOG": "1"}
        while True:
            self.notify_status(status(), **beat)
            await asyncio.sleep(min(beat_s, _STATUS_S))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, address: str) -> socket.socket:
        if self._socket is None:
            name = "\0" + address[1:] if address[0] == "@" else address
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            # A service manager that does not read must not block the event loop.
            made.setblocking(False)
            try:
                made.connect(name)
            except OSError:
                made.close()
                raise
            self._socket = made
        return self._socket


def this_service() -> ServiceManager:
    """Return the client of the service manager (systemd) that ``NOTIFY_SOCKET`` names.

    Without this variable, the client does nothing.

    :raises ConfigError: a variable is malformed.
    """
    return ServiceManager.from_environment(os.environ, os.getpid())


def dirs_text(log_dirs: Sequence[LogDir]) -> str:
    """Return ``log directories: 1 online, 1 impaired (saturated /data/2), 1 offline (/data/3)``.

    Impaired and offline directories are not counted as online.
    """
    impaired = [f"{d.state.value} {d.path}" for d in log_dirs if d.state.is_impaired]
    offline = [d.path for d in log_dirs if d.state is LogDirState.OFFLINE]
    online = len(log_dirs) - len(impaired) - len(offline)
    counts = [f"{online} online", _counted(impaired, "impaired"), _counted(offline, "offline")]
    return f"log directories: {', '.join(counts)}"


def _counted(named: Sequence[str], what: str) -> str:
    return f"{len(named)} {what}" + (f" ({', '.join(named)})" if named else "")
