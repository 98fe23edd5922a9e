"""WIRE. Changes by ``kraftjbod-log-dirs``: reattach, add or permanently forget a directory.

Only kraftjbod's brokers support the request. Any other broker responds UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import DIRECTORY_ID_PREFIX, ZERO_UUID, DirectoryId
from kraftjbod.protocol.messages import AlterLogDirsRequest

#: Numbers of AlterLogDirs, by the tool's option.
OPERATIONS: Final = {"reattach": 0, "add": 1, "forget": 2}
#: Time for the response to arrive after the broker's timeout.
_GRACE_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirChange:
    """A request to ``reattach``, ``add`` or ``forget`` (``operation``) a log directory of a running
    broker.

    ``target`` is an absolute path, or ``dirid:`` and a directory id. ``force`` is for ``forget``
    only.
    """

    operation: str
    broker: int
    target: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLogDir:
    """The broker's response to a :class:`LogDirChange`.

    ``state`` is the directory's new state; empty if the broker has released the directory.
    ``directory_id`` is None if the broker names no id.
    """

    directory_id: DirectoryId | None
    state: str
    message: str


def parse_change(operation: str, text: str, *, force: bool) -> LogDirChange:
    """Parse ``BROKER:PATH`` or ``BROKER:dirid:ID``.

    :param operation: ``reattach``, ``add`` or ``forget``.
    :raises click.BadParameter: the text has another form.
    :raises click.UsageError: ``force`` is given for another operation than ``forget``.
    """
    broker, colon, target = text.partition(":")
    if not colon or not broker.isdigit() or not target:
        raise click.BadParameter(
            f"{text!r} is not BROKER:PATH or BROKER:dirid:ID", param_hint=f"--{operation}"
        )
    if force and operation != "forget":
        raise click.UsageError("--force belongs to --forget")
    if not target.startswith(DIRECTORY_ID_PREFIX):
        target = broker_path(target, f"--{operation}")
    return LogDirChange(operation=operation, broker=int(broker), target=target, force=force)


def broker_path(text: str, option: str) -> str:
    """Normalize a path on a broker's machine, as the broker does.

    :param option: name of the option, for the error.
    :raises click.BadParameter: the path is relative, so this tool cannot know the directory.
    """
    if not text.startswith("/"):
        raise click.BadParameter(
            f"{text!r} is relative, and a broker's directory is named by its whole path on the "
            f"broker's machine; if that is this one: {posixpath.abspath(text)}",
            param_hint=option,
        )
    return posixpath.normpath(text)


async def change_log_dir(
    client: ClusterClient, change: LogDirChange, *, timeout_ms: int
) -> ChangedLogDir:
    """Request the change, and wait until it is done.

    :raises OperatingError: the broker's error; BROKER_NOT_AVAILABLE: it does not run;
        REQUEST_TIMED_OUT: the change continues on the broker; NOT_CONTROLLER: the change ended,
        because no controller responded to the broker.
    """
    metadata = await client.retry(client.refresh_metadata)
    if change.broker not in metadata.brokers:
        existing = ", ".join(map(str, sorted(metadata.brokers)))
        raise OperatingError(
            f"broker {change.broker} does not exist or does not run; running are {existing}",
            code=ErrorCode.BROKER_NOT_AVAILABLE,
        )
    request = AlterLogDirsRequest(
        operation=OPERATIONS[change.operation],
        target=change.target,
        timeout_ms=timeout_ms,
        force=change.force,
    )
    response = await client.request(change.broker, request, timeout_ms=timeout_ms + _GRACE_MS)
    if response.error_code != ErrorCode.NONE:
        raise kafka_error(response.error_code, change.target, response.message or None)
    is_named = response.directory_id != ZERO_UUID
    return ChangedLogDir(
        directory_id=DirectoryId(response.directory_id) if is_named else None,
        state=response.state,
        message=response.message,
    )
