"""What the machine itself can do, measured in the same run as the figures beside it."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Final

MIB: Final = 1024 * 1024
_WRITE_BYTES: Final = 512 * MIB
_COPY_BYTES: Final = 1024 * MIB


def page_cache_write_mb_s(directory: str) -> float:
    """One thread writing 1 MiB at a time to a new file, never synced; MB/s (10**6 bytes)."""
    chunk = os.urandom(MIB)
    path = f"{directory}/bench-write"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        started = time.perf_counter()
        for _ in range(_WRITE_BYTES // MIB):
            os.write(fd, chunk)
        seconds = time.perf_counter() - started
    finally:
        os.close(fd)
        os.unlink(path)
    return _WRITE_BYTES / seconds / 1e6


def loopback_copy_mb_s() -> float:
    """One TCP connection over loopback, 1 MiB at a time, a thread at each end; MB/s."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sink = threading.Thread(target=_swallow, args=(listener,))
        sink.start()
        chunk = bytes(MIB)
        with socket.create_connection(listener.getsockname()) as source:
            started = time.perf_counter()
            for _ in range(_COPY_BYTES // MIB):
                source.sendall(chunk)
        sink.join()
        seconds = time.perf_counter() - started
    return _COPY_BYTES / seconds / 1e6


def _swallow(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        buffer = bytearray(MIB)
        while connection.recv_into(buffer):
            pass
