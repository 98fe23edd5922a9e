"""Opening the node's log dirs at start: lock, identify, remember.

* Each dir is asked in its own thread, all at once, and gets ``timeout_ms`` to answer: a missing,
  unreadable or hung dir is OFFLINE from the start, not a failed start.
* What the operator must mend is a :class:`StartupError`: a dir that another process holds,
  contradicting ids, an unreadable metadata dir.
* A path that this node never had and that holds no file is a new disk and gets an id. A path
  that had one is a disk that went missing: nothing is written there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kraftjbod.core.errors import KafkaStorageError, StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import (
    CLUSTER_METADATA_DIR,
    KNOWN_LOG_DIRS,
    LOCK_FILE,
    META_PROPERTIES,
)
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_dir_policy import OpKind
from kraftjbod.storage.meta_properties import (
    MetaProperties,
    MetaPropertiesEnsemble,
    parse_known_dirs,
    read_meta_properties,
    write_known_dirs,
    write_meta_properties,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a dir's thread found: who the disk says it is, and on which device it lies."""

    properties: MetaProperties | None
    device: int
    holds_cluster_metadata: bool


class DirOpener:
    """Opens dirs once. ``log_dirs`` are made by the caller, unidentified and not watched yet.

    ``metadata_dir`` is one of them, or a further one in ``log_dirs`` that takes no replicas.
    """

    def __init__(
        self,
        *,
        log_dirs: Sequence[LogDir],
        metadata_dir: str,
        node_id: BrokerId,
        random_bytes: Callable[[int], bytes],
        timeout_ms: int = 30_000,
    ) -> None:
        self._dirs = {log_dir.path: log_dir for log_dir in log_dirs}
        self._metadata = self._dirs[metadata_dir]
        self._node_id = node_id
        self._random_bytes = random_bytes
        self._timeout_s = timeout_ms / 1000

    async def open(self) -> str:
        """Lock and identify every dir, start its watches; the cluster id they agree on.

        :raises StartupError: see the module's rules.
        """
        asked = await asyncio.gather(*(self._ask(log_dir) for log_dir in self._dirs.values()))
        answers = {path: answer for path, answer in zip(self._dirs, asked, strict=True) if answer}
        ensemble = self._ensemble(answers)
        ensemble.verify(node_id=self._node_id)
        if (cluster_id := ensemble.cluster_id) is None:
            raise StartupError(
                f"No readable meta.properties files found in {', '.join(self._dirs)} "
                f"(have you run `kraftjbod-storage format`?)"
            )
        known = await self._read_known()
        for path, answer in answers.items():
            await self._identify(self._dirs[path], answer, known, cluster_id)
        await self._remember(known)
        for log_dir in self._dirs.values():
            if log_dir.is_online:
                log_dir.start_watches()
        return cluster_id

    async def _ask(self, log_dir: LogDir) -> _Answer | None:
        """The dir's answer; None if it gave none and is OFFLINE now."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await log_dir.run(OpKind.START, lambda: self._examine(log_dir))
        except TimeoutError:
            log_dir.go_offline("it did not answer while starting", report=False)
        except KafkaStorageError as e:
            log_dir.go_offline(e.message, report=False)
        return None

    def _examine(self, log_dir: LogDir) -> _Answer:
        """In the dir's thread. Nothing but the lock file is written."""
        vfs, path = log_dir.vfs, log_dir.path
        if not vfs.exists(path):
            raise KafkaStorageError(
                f"{path} does not exist: mount its disk, or create and format it "
                f"with `kraftjbod-storage format`"
            )
        device = vfs.device(path)
        properties = read_meta_properties(vfs, f"{path}/{META_PROPERTIES}")
        if properties is not None and not log_dir.try_lock():
            raise StartupError(
                f"Failed to acquire lock on file {LOCK_FILE} in {path}. "
                f"A process or thread is using this directory."
            )
        return _Answer(
            properties=properties,
            device=device,
            holds_cluster_metadata=vfs.exists(f"{path}/{CLUSTER_METADATA_DIR}"),
        )

    def _ensemble(self, answers: Mapping[str, _Answer]) -> MetaPropertiesEnsemble:
        for path, answer in answers.items():
            if answer.holds_cluster_metadata and path != self._metadata.path:
                raise StartupError(
                    f"Found unexpected metadata location in data directory {path}; "
                    f"the metadata log dir is {self._metadata.path}"
                )
        return MetaPropertiesEnsemble(
            metadata_dir=self._metadata.path,
            loaded={path: a.properties for path, a in answers.items() if a.properties},
            empty=[path for path, a in answers.items() if a.properties is None],
            errors={d.path: d.offline_reason for d in self._dirs.values() if not d.is_online},
        )

    async def _read_known(self) -> dict[str, DirectoryId]:
        path = f"{self._metadata.path}/{KNOWN_LOG_DIRS}"
        text = await self._metadata.read_text(OpKind.START, path)
        return {} if text is None else parse_known_dirs(text, path)

    async def _identify(
        self,
        log_dir: LogDir,
        answer: _Answer,
        known: Mapping[str, DirectoryId],
        cluster_id: str,
    ) -> None:
        found = answer.properties
        if found is not None and found.directory_id is not None:
            log_dir.identify(found.directory_id, answer.device)
            return
        if found is None and log_dir.path in known:
            log_dir.identify(known[log_dir.path], answer.device)
            log_dir.go_offline(
                f"no {META_PROPERTIES}, although this node had directory "
                f"{known[log_dir.path]} there: the disk is not mounted or was wiped",
                report=False,
            )
            return
        drawn = DirectoryId.random(self._random_bytes)
        properties = replace(
            found or MetaProperties(cluster_id=None, node_id=None, directory_id=None),
            cluster_id=cluster_id,
            node_id=self._node_id,
            directory_id=drawn,
        )
        await self._adopt(log_dir, properties)
        log_dir.identify(drawn, answer.device)

    async def _adopt(self, log_dir: LogDir, properties: MetaProperties) -> None:
        """Write a dir's first id. A disk that does not take it is OFFLINE from the start."""
        try:
            if not await log_dir.run(OpKind.START, log_dir.try_lock):
                raise StartupError(f"{log_dir.path} is in use by another process")
            await log_dir.run(
                OpKind.START,
                lambda: write_meta_properties(log_dir.vfs, log_dir.path, properties),
            )
        except KafkaStorageError as e:
            log_dir.go_offline(e.message, report=False)
            return
        get_logger().info(
            "log_dir_given_id", log_dir=log_dir.path, directory_id=str(properties.directory_id)
        )

    async def _remember(self, known: dict[str, DirectoryId]) -> None:
        """Name the dirs that did not answer by what is remembered; remember the others."""
        present = {d.path: d.directory_id for d in self._dirs.values() if d.is_online}
        moved = set(present.values())
        remembered = {path: uid for path, uid in known.items() if uid not in moved} | present
        for path, log_dir in self._dirs.items():
            if not log_dir.is_online and path in remembered:
                log_dir.directory_id = remembered[path]
        if remembered != known:
            metadata = self._metadata
            await metadata.run(
                OpKind.START, lambda: write_known_dirs(metadata.vfs, metadata.path, remembered)
            )
