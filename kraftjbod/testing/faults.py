"""PURE. The faults of disks and processes that test tools inject, with one name for each.

Each tool has a constant with the faults that it supports; docs/faults.md lists them.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Self


class DiskFault(StrEnum):
    """A fault of a disk, or of one of its operations."""

    meaning: str
    #: Error of the operations that fail; 0 if the fault does not let any fail.
    error_number: int

    def __new__(cls, word: str, meaning: str = "", number: int = 0) -> Self:
        member = str.__new__(cls, word)
        member._value_, member.meaning, member.error_number = word, meaning, number
        return member

    EIO = "eio", "operations fail with EIO", errno.EIO
    EIO_ONCE = "eio-once", "one of the next operations fails, later ones succeed", errno.EIO
    CHMOD = "chmod", "files cannot be opened (EACCES)", errno.EACCES
    READONLY = "readonly", "changes fail (EROFS), reads succeed", errno.EROFS
    FULL = "full", "operations that need space fail (ENOSPC)", errno.ENOSPC
    SHORT_WRITE = "short-write", "half of the bytes are written, then the write fails", errno.EIO
    WRITEBACK = (
        "writeback",
        "the kernel fails to write some pages. The next sync of each open descriptor fails (EIO), "
        "later ones succeed",
        errno.EIO,
    )
    ROT = "rot", "bits flip: reads succeed and return wrong bytes"
    HANG = "hang", "operations end when the disk is healed"
    HANG_EIO = "hang-eio", "operations hang, and fail when the disk is healed", errno.EIO
    SLOW = "slow", "operations take long"
    UNMOUNT = "unmount", "the directory is absent or empty, until the disk is mounted again"
    WIPE = "wipe", "another, empty disk in its place"
    CLUTTER = "clutter", "another program creates and removes files and dangling links"


class ProcessFault(StrEnum):
    """A fault of a daemon, or of the host on which it runs."""

    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> Self:
        member = str.__new__(cls, word)
        member._value_, member.meaning = word, meaning
        return member

    STOP = "stop", "orderly stop (SIGTERM)"
    KILL = "kill", "the process ends at once (SIGKILL); its peers see closed connections"
    PAUSE = "pause", "the process pauses (SIGSTOP, SIGCONT); its connections stay open"
    POWER_CUT = "power-cut", "the process ends, peers are not notified, unsynced data may be lost"
    CUT_OFF = "cut-off", "no packets to or from some or all other hosts"
    LATE_LOOP = "late-loop", "each event loop iteration takes long"
    DESCRIPTORS = "descriptors", "files cannot be opened (EMFILE)"


Fault = DiskFault | ProcessFault
