"""LOOP. AlterLogDirs, an API of this project: reattach, add or forget a directory of this broker.

It translates between the protocol and log_dir_admin.py. Every result has a message for the
operator.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from kraftjbod.broker.directories.log_dir_admin import LogDirAdmin, LogDirOperation
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID
from kraftjbod.protocol.messages import AlterLogDirsRequest, AlterLogDirsResponse
from kraftjbod.storage.identity.dir_attacher import is_below_any, not_taken

#: Limit of the wait for a response; the operation then continues.
_MAX_WAIT_MS: Final = 3_600_000


class LogDirAdminApis:
    def __init__(self, *, admin: LogDirAdmin, allowed_roots: Sequence[str]) -> None:
        self._admin = admin
        self._allowed_roots = allowed_roots

    async def alter_log_dirs(
        self, request: AlterLogDirsRequest, _context: RequestContext
    ) -> AlterLogDirsResponse:
        try:
            operation = _operation(request.operation)
            _require_path(request.target)
            if operation is LogDirOperation.ADD:
                self._require_allowed(request.target)
            outcome = await self._admin.perform(
                operation,
                request.target,
                force=request.force,
                timeout_ms=min(max(0, request.timeout_ms), _MAX_WAIT_MS),
            )
        except OperatingError as e:
            response = AlterLogDirsResponse(
                error_code=e.code, message=e.message, directory_id=ZERO_UUID
            )
        else:
            response = AlterLogDirsResponse(
                error_code=ErrorCode.NONE,
                message=outcome.message,
                directory_id=outcome.directory_id,
                state=outcome.state,
            )
        return response

    def _require_allowed(self, path: str) -> None:
        """Require that the path is below an allowed root by name.

        The directory's own thread checks symbolic links later.

        :raises OperatingError: the path is not allowed.
        """
        plain = posixpath.normpath(path)
        if path.startswith("/") and not is_below_any(plain, self._allowed_roots):
            raise not_taken(path, "it is not below log.dirs.allowed.roots")


def _require_path(target: str) -> None:
    """Require that system calls accept the path.

    :raises OperatingError: INVALID_REQUEST: the path contains a NUL character.
    """
    if "\0" in target:
        raise OperatingError(
            f"{target!r} contains a NUL character, which no path has",
            code=ErrorCode.INVALID_REQUEST,
        )


def _operation(number: int) -> LogDirOperation:
    try:
        return LogDirOperation(number)
    except ValueError as e:
        raise OperatingError(
            f"{number} is no operation on a directory", code=ErrorCode.INVALID_REQUEST
        ) from e
