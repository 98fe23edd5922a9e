"""WIRE. ``Journal``: sends telemetry to the systemd journal as structured entries.

* Each event is one datagram to journald's socket, in its native protocol. A field is ``NAME=value``
  and a newline. A field whose value has newlines is the name, a newline, the length in eight bytes
  (little-endian), the value and a newline.
* ``MESSAGE`` is the event as a readable line, and ``PRIORITY`` its level in syslog's numbers. Every
  field of the event is also sent as ``KRAFTJBOD_`` and its name in capitals.
* Sending never blocks. Events that journald does not accept at once are dropped and counted. The
  count is sent before the next event. Without journald, events go to standard error as JSON.
* Long values are cut, and fields beyond the size limit are omitted. ``KRAFTJBOD_CUT_FIELDS`` is the
  number of both. Larger entries would need memory file descriptors.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
_NOTICE: Final = 5
#: The journal has separate fields for these.
_NOT_FIELDS: Final = frozenset({"event", "level", "timestamp"})
_MAX_NAME_CHARS: Final = 64
_MAX_VALUE_BYTES: Final = 16 * 1024
#: Below the default buffer size of a datagram socket.
_MAX_ENTRY_BYTES: Final = 128 * 1024
_PREFIX: Final = "KRAFTJBOD_"
_ODD_CHARS: Final = re.compile(r"[^A-Z0-9_]")
_LENGTH: Final = struct.Struct("<Q")


def is_journal(fd: int, environment: Mapping[str, str]) -> bool:
    """Return whether ``fd`` is the stream to the journal, whose device and inode ``JOURNAL_STREAM``
    names.

    :param environment: the environment variables of the process.
    """
    named = environment.get("JOURNAL_STREAM")
    if not named:
        return False
    found = os.fstat(fd)
    return named == f"{found.st_dev}:{found.st_ino}"


class Journal:
    """A daemon's connection to the journal. :meth:`take` is a sink of telemetry.

    :param identifier: the name for ``journalctl -t``.
    :param address: path of journald's socket.
    :param fallback_fd: descriptor that receives the events while journald does not run; becomes
        non-blocking.
    """

    def __init__(
        self, identifier: str, *, address: str = JOURNAL_SOCKET, fallback_fd: int = 2
    ) -> None:
        self._identifier = identifier
        self._address = address
        self._fallback_fd = fallback_fd
        self._dropped = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        os.set_blocking(fallback_fd, False)

    def take(self, event: Mapping[str, Any]) -> None:
        """Send ``event`` to journald, or write it to ``fallback_fd`` while journald does not run.

        An event that neither accepts at once is dropped and counted. Never raises and never waits.
        """
        if self._dropped:
            fields: dict[str, Any] = {
                "event": "telemetry_dropped",
                "level": "warning",
                "events": self._dropped,
            }
            if not self._send(fields):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._send(event):
            self._dropped += 1

    def close(self) -> None:
        self._socket.close()

    def _send(self, event: Mapping[str, Any]) -> bool:
        """Send ``event``; return whether journald or the fallback accepted it completely."""
        try:
            self._socket.sendto(_entry(event, self._identifier), self._address)
        except BlockingIOError:
            return False
        except OSError:
            # No journald listens at present; the next event tries again.
            return self._fall_back(event)
        return True

    def _fall_back(self, event: Mapping[str, Any]) -> bool:
        line = (json.dumps(event, default=str) + "\n").encode()
        try:
            return os.write(self._fallback_fd, line) == len(line)
        except OSError:
            return False


def _entry(event: Mapping[str, Any], identifier: str) -> bytes:
    """Encode the event as one datagram."""
    fields: list[tuple[str, object]] = [
        ("PRIORITY", _PRIORITIES.get(str(event.get("level")), _NOTICE)),
        ("SYSLOG_IDENTIFIER", identifier),
        ("MESSAGE", _message(event)),
        (f"{_PREFIX}EVENT", event.get("event")),
    ]
    fields += [(_field_name(key), _text(event[key])) for key in event if key not in _NOT_FIELDS]
    entry = bytearray()
    shortened = 0
    for name, value in fields:
        data = str(value).encode(errors="replace")
        field = _encoded(name, data[:_MAX_VALUE_BYTES])
        is_too_much = len(entry) + len(field) > _MAX_ENTRY_BYTES
        shortened += is_too_much or len(data) > _MAX_VALUE_BYTES
        if not is_too_much:
            entry += field
    if shortened:
        entry += _encoded(f"{_PREFIX}CUT_FIELDS", str(shortened).encode())
    return bytes(entry)


def _message(event: Mapping[str, Any]) -> str:
    """Return ``log_dir_offline path=/data/1 reason=...``, followed by the traceback, if any."""
    hidden = _NOT_FIELDS | {"exception"}
    words: Iterable[str] = (f"{key}={_text(event[key])}" for key in event if key not in hidden)
    line = " ".join([str(event.get("event")), *words])
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _text(value: object) -> str:
    return json.dumps(value, default=str) if isinstance(value, dict | list | tuple) else str(value)


def _field_name(key: str) -> str:
    return (_PREFIX + _ODD_CHARS.sub("_", key.upper()))[:_MAX_NAME_CHARS]


def _encoded(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return b"%s\n%s%s\n" % (name.encode(), _LENGTH.pack(len(value)), value)
    return b"%s=%s\n" % (name.encode(), value)
