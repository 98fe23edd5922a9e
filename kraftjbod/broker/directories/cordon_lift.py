"""LOOP. ``CordonLift``: removes a forgotten directory from ``cordoned.log.dirs``.

``cordoned.log.dirs`` contains paths (KIP-1066), each of a directory of this broker. If the path of
a forgotten directory stayed there, a new disk mounted at that path would be cordoned from the
start, without an obvious reason. The reduced value is set for this broker, even if the previous
value was set for all brokers or in the broker's file.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.core.config import CORDONED_LOG_DIRS, BrokerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequestRpc,
)

#: KIP-339.
_SUBTRACT: Final = 3


class CordonLift:
    def __init__(
        self, *, config: BrokerConfig, dynamic_configs: DynamicConfigs, channel: ControllerChannel
    ) -> None:
        self._config = config
        self._dynamic_configs = dynamic_configs
        self._channel = channel
        self._log = get_logger(component="cordon_lift")

    async def lift(self, path: str) -> str:
        """Remove ``path`` from the cordoned directories, and return a message for the operator.

        The message is empty if ``path`` was not cordoned. A failure is part of the message: it does
        not prevent the removal of the directory.
        """
        cordoned = self._dynamic_configs.current.cordoned_log_dirs
        if ALL_LOG_DIRS in cordoned:
            return f"{CORDONED_LOG_DIRS} is {ALL_LOG_DIRS}: another one there is cordoned too"
        if path not in cordoned:
            return ""
        try:
            await self._subtract(path)
        except OperatingError as e:
            self._log.warning("cordon_not_lifted", log_dir=path, reason=e.message)
            return f"its cordon stays ({e.message}): take {path} out of {CORDONED_LOG_DIRS}"
        self._log.info("cordon_lifted", log_dir=path)
        return f"its cordon is lifted, {path} is in {CORDONED_LOG_DIRS} no more"

    async def _subtract(self, path: str) -> None:
        change = ConfigChange(
            name=CORDONED_LOG_DIRS,
            operation=_SUBTRACT,
            value=path,
            base=",".join(self._config.cordoned_log_dirs),
        )
        broker_id = self._config.node_id
        resource = AlteredResource(
            resource_type=ResourceType.BROKER, name=str(broker_id), changes=(change,)
        )
        response = await self._channel.call(
            IncrementalAlterConfigsRequestRpc(resources=(resource,), validated_by=broker_id),
            timeout_ms=self._config.controller_request_timeout_ms,
        )
        for outcome in response.resources:
            if outcome.error_code is not ErrorCode.NONE:
                raise OperatingError(outcome.error_message or "", code=outcome.error_code)
