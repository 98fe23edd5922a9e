"""LOOP. ``DirOpener``: opens the node's log directories at the start: lock, identify, remember.

* All directories are examined in parallel, each in its own thread and within ``timeout_ms``. A
  missing, unreadable, hung or foreign directory is OFFLINE, and the start continues.
* Errors that the operator has to fix raise :class:`StartupError`: a directory locked by another
  process, an id found in two directories, an unreadable metadata directory.
* A path without ``meta.properties`` that this node never used is a new disk and gets an id. Other
  content is not checked here. If the path had a directory before, its disk is missing, and nothing
  is written there.
* Directories that were added at run time are opened too, even if ``log.dirs`` does not name them.
* Every directory builds its reserve before logs are recovered (KIP-928). A broker's directory
  without space for it is SATURATED, and one without space for its id is OFFLINE.
* A new controller does not start without space for the reserve of its directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from kraftjbod.core.errors import InconsistentStorageError, KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import KNOWN_LOG_DIRS
from kraftjbod.storage.identity.dir_examination import (
    Examination,
    examine,
    give_id,
    no_space,
)
from kraftjbod.storage.identity.dir_identity import Found, Refused, Unnamed, foreign, identify
from kraftjbod.storage.identity.known_dirs import KnownDirs, parse_known_dirs, write_known_dirs
from kraftjbod.storage.log_dirs.disk_check import holds_replicas
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.meta_properties import MetaPropertiesEnsemble


class DirOpener:
    """Opens the log directories of a node at its start: locks, identifies and watches each, and
    builds its reserve.

    :param log_dirs: directories created by the caller, not identified and not watched yet,
        including the metadata directory even if it has no replicas.
    :param metadata_dir: path of the metadata directory.
    :param make_log_dir: creates the ``LogDir`` for a path that was added at run time; None for a
        controller, which has no added directories.
    """

    def __init__(
        self,
        *,
        log_dirs: Sequence[LogDir],
        metadata_dir: str,
        node_id: BrokerId,
        cluster_id: str | None = None,
        random_bytes: Callable[[int], bytes],
        timeout_ms: int = 30_000,
        make_log_dir: Callable[[str], LogDir] | None = None,
    ) -> None:
        """Prepare opening.

        :param cluster_id: from the configuration; None if it has none.
        :param timeout_ms: limit for the examination of each directory.
        """
        self._dirs = {log_dir.path: log_dir for log_dir in log_dirs}
        self._metadata = self._dirs[metadata_dir]
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._random_bytes = random_bytes
        self._timeout_ms = timeout_ms
        self._make_log_dir = make_log_dir
        #: Directories that the configuration does not name; valid after :meth:`open`.
        self.added: list[LogDir] = []
        self._log = get_logger()

    async def open(self) -> str:
        """Lock and identify every directory, start its watches, build its reserve. Return the
        cluster id. Call it once.

        A directory that cannot be used is OFFLINE afterwards.

        :raises StartupError: the operator has to act: for example, another process holds a lock,
            two directories have one id, or the metadata directory is unreadable. Directories may
            stay locked then.
        """
        metadata = self._metadata
        answers: dict[str, Examination] = {}
        known = KnownDirs()
        if (answer := await examine(metadata, timeout_ms=self._timeout_ms)) is not None:
            answers[metadata.path] = answer
            known = await self._read_known()
            self._make_added(known)
        answers |= await self._examine_others()
        cluster_id = self._agree(answers)
        present = {
            answer.properties.directory_id: path
            for path, answer in answers.items()
            if answer.properties is not None and answer.properties.directory_id is not None
        }
        for path, answer in answers.items():
            await self._identify(self._dirs[path], answer, known, present, cluster_id)
        await self._remember(known)
        online = [log_dir for log_dir in self._dirs.values() if log_dir.is_online]
        for log_dir in online:
            log_dir.start_watches()
        await asyncio.gather(*(self._secure_reserve(log_dir) for log_dir in online))
        return cluster_id

    async def _secure_reserve(self, log_dir: LogDir) -> None:
        """Build the reserve. A failure is logged, except for a new controller.

        :raises StartupError: a new controller's directory has no space for its reserve.
        """
        try:
            try:
                await log_dir.secure_reserve()
            except LogDirImpairedError as e:
                if self._make_log_dir is None and not await log_dir.run_operation(
                    OpKind.LOAD, lambda: holds_replicas(log_dir.vfs, log_dir.path)
                ):
                    raise no_space(log_dir.path, e) from e
        except KafkaStorageError:
            return  # The event log_dir_offline was logged; other directories are still opened.

    def _make_added(self, known: KnownDirs) -> None:
        for path in sorted(known.added - self._dirs.keys()):
            if self._make_log_dir is None:
                return
            self._dirs[path] = self._make_log_dir(path)
            self.added.append(self._dirs[path])
            self._log.warning(
                "added_log_dir_not_configured",
                log_dir=path,
                advice="it was added while the broker ran; add it to log.dirs",
            )

    async def _examine_others(self) -> dict[str, Examination]:
        others = [log_dir for log_dir in self._dirs.values() if log_dir is not self._metadata]
        asked = await asyncio.gather(*(self._examine(log_dir) for log_dir in others))
        return {
            log_dir.path: answer
            for log_dir, answer in zip(others, asked, strict=True)
            if answer is not None
        }

    async def _examine(self, log_dir: LogDir) -> Examination | None:
        answer = await examine(log_dir, timeout_ms=self._timeout_ms)
        if answer is not None and answer.holds_cluster_metadata:
            raise InconsistentStorageError(
                f"Found unexpected metadata location in data directory {log_dir.path}; "
                f"the metadata log dir is {self._metadata.path}"
            )
        return answer

    def _agree(self, answers: dict[str, Examination]) -> str:
        """Return the cluster id that the directories agree on.

        Directories that contradict the metadata directory are taken OFFLINE and removed from
        ``answers``.

        :raises StartupError: no directory has a cluster id, or the others contradict each other.
        """
        metadata = answers.get(self._metadata.path)
        if metadata is not None and metadata.properties is not None:
            cluster_id = metadata.properties.cluster_id
            for path, answer in list(answers.items()):
                if cluster_id is None or answer is metadata or answer.properties is None:
                    continue
                found = answer.properties
                reason = foreign(path, found, cluster_id=cluster_id, node_id=self._node_id)
                if reason is not None:
                    self._dirs[path].go_offline(reason, report=False)
                    del answers[path]
        ensemble = MetaPropertiesEnsemble(
            metadata_dir=self._metadata.path,
            loaded={path: a.properties for path, a in answers.items() if a.properties},
            empty=[path for path, a in answers.items() if a.properties is None],
            errors={d.path: d.offline_reason for d in self._dirs.values() if not d.is_online},
        )
        ensemble.verify(node_id=self._node_id)
        if ensemble.cluster_id is None:
            raise InconsistentStorageError(
                f"No readable meta.properties files found in {', '.join(self._dirs)} "
                f"(mount their disk, or put them back from a backup; a new node is formatted "
                f"with `kraftjbod-storage format`)"
            )
        if self._cluster_id not in (None, ensemble.cluster_id):
            raise InconsistentStorageError(
                f"{', '.join(ensemble.loaded)} belongs to cluster {ensemble.cluster_id}, and the "
                f"configuration says cluster.id={self._cluster_id}: mount the disks of that "
                f"cluster, or mend the configuration"
            )
        return ensemble.cluster_id

    async def _read_known(self) -> KnownDirs:
        path = f"{self._metadata.path}/{KNOWN_LOG_DIRS}"
        text = await self._metadata.read_text(OpKind.START, path)
        return KnownDirs() if text is None else parse_known_dirs(text, path)

    async def _identify(
        self,
        log_dir: LogDir,
        answer: Examination,
        known: KnownDirs,
        present: Mapping[DirectoryId, str],
        cluster_id: str,
    ) -> None:
        identity = identify(
            log_dir.path,
            answer.properties,
            known=known,
            present=present,
            cluster_id=cluster_id,
            node_id=self._node_id,
        )
        match identity:
            case Found(directory_id=directory_id):
                log_dir.identify(directory_id, answer.device)
                log_dir.clean_shutdown = answer.clean_shutdown
            case Refused(reason=reason):
                log_dir.go_offline(reason, report=False)
            case Unnamed():
                await self._name(log_dir, answer, cluster_id)

    async def _name(self, log_dir: LogDir, answer: Examination, cluster_id: str) -> None:
        """Give a directory its first id. If that fails, the directory is OFFLINE."""
        drawn = DirectoryId.random(self._random_bytes)
        try:
            await give_id(log_dir, drawn, cluster_id=cluster_id, node_id=self._node_id)
        except KafkaStorageError as e:
            log_dir.go_offline(e.message, report=False)
            return
        except LogDirImpairedError as e:
            log_dir.go_offline(str(no_space(log_dir.path, e)), report=False)
            return
        log_dir.identify(drawn, answer.device)

    async def _remember(self, known: KnownDirs) -> None:
        """Store the ids and paths of the online directories.

        Set the remembered ids of OFFLINE ones.
        """
        present = {d.path: d.directory_id for d in self._dirs.values() if d.is_online}
        added = {log_dir.path for log_dir in self.added}
        remembered = known.seen(present).configured(self._dirs.keys() - added)
        for path, log_dir in self._dirs.items():
            if not log_dir.is_online and path in remembered.ids:
                log_dir.directory_id = remembered.ids[path]
        if remembered != known:
            await self._write_known(remembered)

    async def _write_known(self, remembered: KnownDirs) -> None:
        metadata, path = self._metadata, f"{self._metadata.path}/{KNOWN_LOG_DIRS}"

        def write() -> None:
            write_known_dirs(metadata.vfs, metadata.path, remembered)

        try:
            try:
                await metadata.run_operation(OpKind.START, write)
            except LogDirImpairedError:
                # The disk is full, but the first attempt released its reserve.
                await metadata.run_operation(OpKind.START, write)
        except LogDirImpairedError as e:
            self._log.warning("known_log_dirs_not_written", path=path, reason=e.message)
