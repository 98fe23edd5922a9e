"""AlterLogDirs, which is ours alone: reattach, add or forget a directory of this broker.

Between the wire and log_dir_admin.py; every outcome has a message for whoever asked.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.log_dir_admin import LogDirAdmin, LogDirOperation
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID
from kraftjbod.protocol.kafka_codec import Message, message

AlterLogDirsResponse = message("AlterLogDirsResponse")

#: No answer takes longer; what is under way then goes on.
_MAX_WAIT_MS: Final = 3_600_000


class LogDirAdminApis:
    def __init__(self, *, admin: LogDirAdmin) -> None:
        self._admin = admin

    async def alter_log_dirs(self, request: Message, _context: RequestContext) -> Message:
        response: Message
        try:
            outcome = await self._admin.perform(
                _operation(request.operation),
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


def _operation(number: int) -> LogDirOperation:
    try:
        return LogDirOperation(number)
    except ValueError as e:
        raise OperatingError(
            f"{number} is no operation on a directory", code=ErrorCode.INVALID_REQUEST
        ) from e
