"""A scripted broker with two live directories and an offline one.

Replicas move only when a test says so; it also sets the copied bytes and ends the moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId
from kraftjbod.protocol.messages import DescribeLogDirsResponse
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker

Place = tuple[str, int]
"""Topic and partition."""

DIRS = {"/d1": DirectoryId(bytes(15) + b"\xd1"), "/d2": DirectoryId(bytes(15) + b"\xd2")}
SIZE_BYTES = 4096


class MovingBroker(MiniBroker):
    def __init__(self) -> None:
        super().__init__()
        self.gives_ids = True
        # Replicas of every partition in the metadata.
        self.replicas: tuple[int, ...] = (BROKER_ID, 8)
        self.current: dict[Place, str] = {}
        self.future: dict[Place, str] = {}
        self.future_bytes = 1024

    def hold(self, topic: str, partitions: int = 1, *, log_dir: str = "/d1") -> None:
        self.create(topic, partitions)
        self.current |= {(topic, index): log_dir for index in range(partitions)}

    def finish_moves(self) -> None:
        self.current |= self.future
        self.future.clear()

    def _topic_metadata(self, name: str, code: int) -> Any:
        topic = super()._topic_metadata(name, code)
        for partition in topic.partitions:
            partition.replica_nodes = list(self.replicas)
        return topic

    def _alter_replica_log_dirs(self, body: Any, code: int) -> Any:
        if not code:
            for log_dir in body.dirs:
                for topic in log_dir.topics:
                    for index in topic.partitions:
                        self._begin((topic.name, index), log_dir.path)
        return super()._alter_replica_log_dirs(body, code)

    def _begin(self, place: Place, path: str) -> None:
        if self.current[place] == path:
            self.future.pop(place, None)
        else:
            self.future[place] = path

    def _describe_log_dirs(self, _: Any, code: int) -> Any:
        response = DescribeLogDirsResponse
        results = [self._described(path) for path in DIRS]
        dead = response.DescribeLogDirsResult(
            log_dir="/d3", error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
        return response(error_code=code, results=[*results, dead])

    def _described(self, path: str) -> Any:
        response = DescribeLogDirsResponse
        copies = [(place, False) for place, where in self.current.items() if where == path]
        copies += [(place, True) for place, where in self.future.items() if where == path]
        described = response.DescribeLogDirsResult(
            log_dir=path,
            topics=[
                response.DescribeLogDirsTopic(
                    name=topic,
                    partitions=[
                        response.DescribeLogDirsPartition(
                            partition_index=index,
                            partition_size=self.future_bytes if is_future else SIZE_BYTES,
                            is_future_key=is_future,
                        )
                    ],
                )
                for (topic, index), is_future in copies
            ],
        )
        if self.gives_ids:
            described.directory_id = DIRS[path]
        return described


@asynccontextmanager
async def moving_broker() -> AsyncIterator[MovingBroker]:
    broker = MovingBroker()
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close(timeout_ms=1000)
