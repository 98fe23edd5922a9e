"""A scripted broker with three directories that can be drained.

It keeps cordons, reports free space and completes each move two polls later, like an idle cluster.
A test may delay moves or make a directory accept nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kraftjbod.protocol.messages import MetadataResponse
from tests.unit.cli.mini_broker import BROKER_ID
from tests.unit.cli.reassignment.moving_broker import SIZE_BYTES, MovingBroker

CORDONS = "cordoned.log.dirs"
_APPEND = 2


class DrainedBroker(MovingBroker):
    def __init__(self) -> None:
        super().__init__()
        self.replicas = (BROKER_ID,)
        # Leader of every partition.
        self.leader = BROKER_ID
        self.usable = {"/d1": 0, "/d2": 100 * SIZE_BYTES}
        # A move ends one poll after a poll has seen it, unless this is False.
        self.ends_moves = True
        # Called at each poll, before the response.
        self.at_poll: list[Any] = []
        self._seen_moving = False

    @property
    def cordoned(self) -> list[str]:
        return self.broker_configs.get(CORDONS, "").split(",")

    def _topic_metadata(self, name: str, code: int) -> Any:
        topic = super()._topic_metadata(name, code)
        for partition in topic.partitions:
            partition.leader_id = self.leader
        return topic

    def _describe_cluster(self, body: Any, code: int) -> Any:
        answer = super()._describe_cluster(body, code)
        for broker in answer.brokers:
            for log_dir in broker.log_dirs:
                log_dir.is_cordoned = bool({log_dir.path, "*"} & {*self.cordoned})
        return answer

    def _describe_log_dirs(self, body: Any, code: int) -> Any:
        for act in self.at_poll:
            act()
        if self.future and self._seen_moving and self.ends_moves:
            self.finish_moves()
        self._seen_moving = bool(self.future)
        answer = super()._describe_log_dirs(body, code)
        for log_dir in answer.results:
            log_dir.is_cordoned = bool({log_dir.log_dir, "*"} & {*self.cordoned})
            log_dir.usable_bytes = self.usable.get(log_dir.log_dir, 0)
            log_dir.total_bytes = 1 << 30
            log_dir.state = "online"
        return answer

    def _alter_partition_reassignments(self, body: Any, code: int) -> Any:
        answer = super()._alter_partition_reassignments(body, code)
        for place, part in list(self.reassigned.items()):
            if part.replicas is not None and tuple(part.replicas) == self.replicas:
                del self.reassigned[place]
        return answer

    def _incremental_alter_configs(self, body: Any, code: int) -> Any:
        for resource in body.resources:
            configs = self._configs_of(resource)
            for change in resource.configs:
                if change.config_operation == _APPEND:
                    before = [configs[change.name]] if configs.get(change.name) else []
                    change.value = ",".join([*before, change.value])
                    change.config_operation = 0
        return super()._incremental_alter_configs(body, code)

    def _metadata(self, body: Any, code: int) -> Any:
        answer = super()._metadata(body, code)
        response = MetadataResponse
        for broker in answer.brokers:
            assert isinstance(broker, response.MetadataResponseBroker)
            broker.rack = "r1"
        return answer


@asynccontextmanager
async def drained_broker() -> AsyncIterator[DrainedBroker]:
    broker = DrainedBroker()
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close(timeout_ms=1000)
