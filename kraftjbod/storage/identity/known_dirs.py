"""DISK. ``known-log-dirs.json``: this node's directories and their last paths.

The file is in the metadata directory. It answers two questions that a disk cannot answer:

* Is an empty path a new disk, or is its disk missing? Nothing is written to a path that had a
  directory.
* Which directories were added while the broker ran, and are not in ``log.dirs`` yet?

The id belongs to the disk: if an id appears under another path, the new path is stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kraftjbod.core.errors import InconsistentStorageError, InvalidUuidText
from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.dir_names import KNOWN_LOG_DIRS
from kraftjbod.storage.vfs import Vfs, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDirs:
    """Content of ``known-log-dirs.json``: the id of the directory last seen at each path.

    ``added`` are the paths that were added at run time and are not in ``log.dirs``.
    """

    ids: Mapping[str, DirectoryId] = field(default_factory=dict)
    added: frozenset[str] = frozenset()

    def path_of(self, directory_id: DirectoryId) -> str | None:
        """Return the last path of the directory; None if the id is not known."""
        return next((path for path, known in self.ids.items() if known == directory_id), None)

    def seen(self, present: Mapping[str, DirectoryId]) -> KnownDirs:
        """Return a copy in which each path of ``present`` has the given directory.

        The former paths of these directories are forgotten, and so is any other directory that was
        last seen at a path of ``present``.
        """
        found = set(present.values())
        stayed = {path: known for path, known in self.ids.items() if known not in found}
        ids = {**stayed, **present}
        return KnownDirs(ids=ids, added=self.added & ids.keys())

    def took_in(self, path: str, directory_id: DirectoryId) -> KnownDirs:
        """Return a copy with a directory that was added at run time, whose path is in ``added``."""
        seen = self.seen({path: directory_id})
        return replace(seen, added=seen.added | {path})

    def configured(self, paths: Collection[str]) -> KnownDirs:
        """Return a copy in which ``paths``, the ones of ``log.dirs``, are not in ``added``."""
        return replace(self, added=self.added.difference(paths))

    def without_path(self, path: str) -> KnownDirs:
        """Return a copy without the directory at ``path``."""
        ids = {where: known for where, known in self.ids.items() if where != path}
        return KnownDirs(ids=ids, added=self.added & ids.keys())

    def without(self, directory_id: DirectoryId) -> KnownDirs:
        """Return a copy without the directory. Its path is forgotten too, as if no directory had
        ever been there.
        """
        ids = {path: known for path, known in self.ids.items() if known != directory_id}
        return KnownDirs(ids=ids, added=self.added & ids.keys())


def format_known_dirs(known: KnownDirs) -> bytes:
    document = {
        "version": 1,
        "directories": {path: str(uid) for path, uid in sorted(known.ids.items())},
        "added": sorted(known.added),
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def parse_known_dirs(text: str | bytes, path: str) -> KnownDirs:
    """Parse the content of ``known-log-dirs.json``.

    :raises InconsistentStorageError: the content is damaged, or not UTF-8. The message names
        ``path``.
    """
    try:
        document = json.loads(text)
        ids = {where: DirectoryId.parse(uid) for where, uid in document["directories"].items()}
        # Files of older versions have no key "added".
        return KnownDirs(ids=ids, added=frozenset(document.get("added", ())) & ids.keys())
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise InconsistentStorageError(
            f"{path} is damaged ({e}). It says which log dirs this node had. "
            f"If all of them are mounted, remove it and start again."
        ) from e


def read_known_dirs(vfs: Vfs, metadata_dir: str) -> KnownDirs:
    path = f"{metadata_dir}/{KNOWN_LOG_DIRS}"
    data = vfs.read_if_exists(path)
    return KnownDirs() if data is None else parse_known_dirs(bytes(data), path)


def write_known_dirs(vfs: Vfs, metadata_dir: str, known: KnownDirs) -> None:
    write_atomically(vfs, f"{metadata_dir}/{KNOWN_LOG_DIRS}", format_known_dirs(known))
