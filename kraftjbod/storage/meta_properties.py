"""DISK. ``meta.properties``: which cluster, node and directory a disk belongs to.

* The file has Kafka's format, version 1 (KIP-858, "Storage format command"). Version 0 can be read.
* :class:`MetaPropertiesEnsemble` holds the files of all directories of a node, and rejects
  contradictions with messages that name the paths.
* The id belongs to the disk: an id found under another path is the same directory. known_dirs.py
  remembers the ids of this node.

This module only reads, writes and compares. The callers decide whether a directory has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from kraftjbod.core.errors import InconsistentStorageError, InvalidUuidText, MetadataDirError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.properties import format_properties, parse_properties
from kraftjbod.storage.dir_names import META_PROPERTIES
from kraftjbod.storage.vfs import Vfs, write_atomically

_VERSION: Final = 1
_LARGEST_ID: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Content of one ``meta.properties``.

    ``directory_id`` is None in old files. Version 0 may also lack the other ids.
    """

    cluster_id: str | None
    node_id: BrokerId | None
    directory_id: DirectoryId | None
    version: int = _VERSION

    def as_properties(self) -> dict[str, str]:
        """Return the keys and values of the file, sorted by key."""
        node_key = "node.id" if self.version else "broker.id"
        values = {
            "cluster.id": self.cluster_id,
            "directory.id": None if self.directory_id is None else str(self.directory_id),
            node_key: None if self.node_id is None else str(self.node_id),
            "version": str(self.version),
        }
        return {key: value for key, value in sorted(values.items()) if value is not None}


@lru_cache(maxsize=64)  # Every check of a disk parses the same text.
def parse_meta_properties(text: str, path: str) -> MetaProperties:
    """Parse the text of ``meta.properties``.

    :raises StartupError: the text is invalid. The message names ``path``.
    """
    values = parse_properties(text, path)
    version = _parse_version(values.get("version", "0"), path)
    node_text = values.get("node.id" if version else "broker.id")
    cluster_id = values.get("cluster.id")
    if version and cluster_id is None:
        raise InconsistentStorageError(f"{path}: cluster.id was not found.")
    if version and node_text is None:
        raise InconsistentStorageError(f"{path}: node.id was not found.")
    return MetaProperties(
        cluster_id=cluster_id,
        node_id=None if node_text is None else _parse_node_id(node_text, path),
        directory_id=_parse_directory_id(values.get("directory.id"), path),
        version=version,
    )


def read_meta_properties(vfs: Vfs, path: str) -> MetaProperties | None:
    """Return the content of the file, or None if it does not exist.

    :raises StartupError: the file is invalid.
    """
    data = vfs.read_if_exists(path)
    if data is None:
        return None
    return parse_meta_properties(bytes(data).decode("utf-8", errors="replace"), path)


def write_meta_properties(vfs: Vfs, directory: str, properties: MetaProperties) -> None:
    """Write ``meta.properties`` into ``directory`` atomically and durably, as version 1."""
    text = format_properties(replace(properties, version=_VERSION).as_properties(), "")
    write_atomically(vfs, f"{directory}/{META_PROPERTIES}", text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaPropertiesEnsemble:
    """The ``meta.properties`` of all directories of one node.

    Each configured path is in exactly one of ``loaded``, ``empty`` and ``errors``.
    """

    metadata_dir: str
    loaded: Mapping[str, MetaProperties]
    #: Paths without a file.
    empty: Sequence[str] = ()
    #: Paths that could not be read, and the errors.
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def cluster_id(self) -> str | None:
        """Cluster id of the first directory that has one; None if none has."""
        return next((p.cluster_id for p in self.loaded.values() if p.cluster_id), None)

    def verify(
        self,
        *,
        node_id: BrokerId | None,
        cluster_id: str | None = None,
        need_metadata_dir: bool = True,
    ) -> None:
        """Raise an error unless the directories agree with each other and with the expected ids.

        :param node_id: the expected node id; None: node ids are not compared.
        :param cluster_id: the expected cluster id; None: that of the first directory with one.
        :raises InconsistentStorageError: a contradiction, or a directory id that is reserved or
            occurs twice. The messages are Kafka's and name the paths.
        :raises MetadataDirError: the metadata directory could not be read, and
            ``need_metadata_dir``.
        """
        if need_metadata_dir and self.metadata_dir in self.errors:
            raise MetadataDirError(
                f"Encountered I/O error in metadata log directory {self.metadata_dir}. "
                f"Cannot continue: {self.errors[self.metadata_dir]}"
            )
        expected = cluster_id or self.cluster_id
        owner_of: dict[DirectoryId, str] = {}
        for path, found in self.loaded.items():
            _verify_ids(f"{path}/{META_PROPERTIES}", found, expected, node_id)
            if found.directory_id is None:
                continue
            if found.directory_id.is_reserved:
                raise InconsistentStorageError(
                    f"Invalid reserved directory ID {found.directory_id} in {path}"
                )
            if found.directory_id in owner_of:
                raise InconsistentStorageError(
                    f"Duplicate directory ID {found.directory_id} found. "
                    f"It was the ID of {owner_of[found.directory_id]}, but also of {path}"
                )
            owner_of[found.directory_id] = path


def _verify_ids(
    file: str, found: MetaProperties, cluster_id: str | None, node_id: BrokerId | None
) -> None:
    if found.cluster_id is not None and found.cluster_id != cluster_id:
        raise InconsistentStorageError(
            f"Invalid cluster.id in: {file}. Expected {cluster_id}, but read {found.cluster_id}"
        )
    if node_id is not None and found.node_id is not None and found.node_id != node_id:
        raise InconsistentStorageError(
            f"Stored node id {found.node_id} doesn't match previous node id {node_id} in {file}. "
            f"If you moved your data, make sure your configured node id matches."
        )


def _parse_version(text: str, path: str) -> int:
    if not text.isdecimal():
        raise InconsistentStorageError(f"{path}: Invalid meta.properties version string '{text}'")
    if int(text) > _VERSION:
        raise InconsistentStorageError(f"{path}: Unknown meta.properties version number {text}")
    return int(text)


def _parse_node_id(text: str, path: str) -> BrokerId:
    if not text.isdecimal() or int(text) > _LARGEST_ID:
        raise InconsistentStorageError(f"{path}: Invalid node id '{text}'")
    return BrokerId(int(text))


def _parse_directory_id(text: str | None, path: str) -> DirectoryId | None:
    if text is None:
        return None
    try:
        return DirectoryId.parse(text)
    except InvalidUuidText as e:
        raise InconsistentStorageError(f"{path}: {e}") from e
