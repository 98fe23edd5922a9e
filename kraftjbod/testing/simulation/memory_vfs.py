"""WIRE. ``MemVfs``: a file system in memory with a model of crashes.

* memory_file.py models which bytes of a file survive a crash.
* A name is durable once its directory was synced, with the names of the directories above.
  Of later changes a crash keeps a prefix, as a journal replays them, and possibly names of files
  that were synced after a later change (btrfs logs a file with its name). A file that was renamed
  may have both names then.
* The space of a file without a name is free once its last open descriptor is closed.

``crash_clone(seed)`` returns one possible state after a crash as a new ``MemVfs`` and leaves this
one unchanged.

``capacity_bytes`` and ``capacity_inodes`` can be set at any time. Operations beyond them fail with
ENOSPC after a partial write, as on a real disk.
"""

from __future__ import annotations

import io
import posixpath
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from errno import EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from os import strerror
from typing import Any, Final, NamedTuple

from kraftjbod.storage.vfs import DirEntry, Extent, OpenMode, Space, sync_in_order
from kraftjbod.testing.simulation.memory_file import MemFile, MemLock

#: Share of the synced files whose names survive although an earlier change does not.
_LOGGED: Final = 0.3
#: Share of renames of these files after which both names survive.
_BOTH_NAMES: Final = 0.1
#: Limit of name changes that may be lost. Beyond it the oldest become durable, as in a kernel that
#: commits its journal every few seconds.
_MOST_UNCERTAIN: Final = 256


class MemLink:
    """A dangling symbolic link."""


class MemDir:
    """A directory: ``entries`` has its names, and ``durable`` those names that are certainly on the
    disk."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        #: The durable names.
        self.durable: dict[str, Node] = {}


Node = MemFile | MemDir | MemLink
#: A name in a directory, and its new node; None removes the name.
_Edit = tuple[MemDir, str, "Node | None"]


class _Change(NamedTuple):
    """Edits that survive a crash together or not at all."""

    edits: tuple[_Edit, ...]
    #: The changed names, each with its directory.
    places: frozenset[tuple[MemDir, str]]
    directories: frozenset[MemDir]
    #: Number of syncs of the file before the change.
    syncs: int

    @property
    def synced_file(self) -> MemFile | None:
        """The named file if it was synced since the change, else None."""
        node = self.edits[-1][2]
        return node if isinstance(node, MemFile) and node.syncs > self.syncs else None


class MemVfs:
    """A file system in memory that can lose unsynced data, with the methods of
    :class:`~kraftjbod.storage.vfs.Vfs`.

    :param usable_bytes: free space to report while ``capacity_bytes`` is None.
    """

    def __init__(self, *, usable_bytes: int = 1 << 30) -> None:
        self._root = MemDir()
        #: Changes of names that a crash may undo, the oldest first.
        self._uncertain: list[_Change] = []
        #: Files that lost their names while they were open.
        self._unnamed: list[MemFile] = []
        self._locks: set[str] = set()
        self._mutex = threading.RLock()
        self.usable_bytes = usable_bytes
        #: Capacity for all files together; None: unlimited.
        self.capacity_bytes: int | None = None
        #: Limit of the number of files and directories; None: unlimited.
        self.capacity_inodes: int | None = None
        self.device_number = 1

    # -- state after a crash ----------------------------------------------------------------

    def crash_clone(self, seed: int) -> MemVfs:
        """Return a copy in a state that a power cut now may leave. This file system does not
        change.

        :param seed: selects which changes since the last syncs survive.
        """
        rng = random.Random(seed)
        with self._mutex:
            left = _applied(self._surviving_edits(rng))
            return self._clone(
                lambda directory: left.get(directory, directory.durable),
                lambda file: file.after_crash(rng),
            )

    def names_after_crash(self, seed: int) -> dict[str, MemFile | None]:
        """Return the file of each path that would exist after a power cut now; None for a
        directory or a link.

        :param seed: selects which changes since the last sync survive.
        """
        with self._mutex:
            left = _applied(self._surviving_edits(random.Random(seed)))
            found: dict[str, MemFile | None] = {}

            def note(directory: MemDir, place: str) -> None:
                for name, node in left.get(directory, directory.durable).items():
                    path = f"{place}/{name}"
                    found[path] = node if isinstance(node, MemFile) else None
                    if isinstance(node, MemDir):
                        note(node, path)

            note(self._root, "")
            return found

    def clone(self) -> MemVfs:
        """Return a copy with the same names and bytes, all of them durable, without open files."""
        with self._mutex:
            return self._clone(lambda directory: directory.entries, MemFile.copied)

    def _surviving_edits(self, rng: random.Random) -> list[_Edit]:
        changes = self._uncertain
        kept = rng.randint(0, len(changes))
        edits = [edit for change in changes[:kept] for edit in change.edits]
        lost: set[tuple[MemDir, str]] = set()
        logged: dict[MemFile, bool] = {}
        for change in changes[kept:]:
            file = change.synced_file
            if file is not None and file not in logged:
                logged[file] = rng.random() < _LOGGED
            if file is None or not logged[file] or not lost.isdisjoint(change.places):
                lost |= change.places
            else:
                keeps_both = rng.random() < _BOTH_NAMES
                edits += change.edits[-1:] if keeps_both else change.edits
        return edits

    def _clone(
        self,
        names_of: Callable[[MemDir], dict[str, Node]],
        copy_of: Callable[[MemFile], MemFile],
    ) -> MemVfs:
        clone = MemVfs(usable_bytes=self.usable_bytes)
        files: dict[MemFile, MemFile] = {}

        def copied(node: Node) -> Node:
            match node:
                case MemDir():
                    directory = MemDir()
                    for name, child in sorted(names_of(node).items()):
                        directory.entries[name] = copied(child)
                    directory.durable = dict(directory.entries)
                    return directory
                case MemFile():
                    if node not in files:
                        files[node] = copy_of(node)
                        files[node].free_bytes = clone._free_bytes
                    return files[node]
                case MemLink():
                    return node

        root = copied(self._root)
        assert isinstance(root, MemDir), root
        clone._root = root
        clone.capacity_bytes = self.capacity_bytes
        clone.capacity_inodes = self.capacity_inodes
        return clone

    def drop_caches(self) -> None:
        """Drop the clean pages of all files from memory, so that the next reads return the content
        on the disk."""
        with self._mutex:
            for file in [node for node in self._walk(self._root) if isinstance(node, MemFile)]:
                file.evict(0, file.size())

    def mounted(self, *, was: str, now: str) -> MemVfs:
        """Return a file system with the directory ``was`` of this one at the path ``now``, and
        nothing else. The directory is shared and not copied. All its names become durable."""
        moved = MemVfs(usable_bytes=self.usable_bytes)
        moved.make_dirs(_parent(now))
        parent, name = moved._place(now)
        parent.entries[name] = self._dir(was)
        for node in moved._walk(moved._root):
            if isinstance(node, MemDir):
                node.durable = dict(node.entries)
        moved._uncertain.clear()
        moved.device_number = self.device_number
        return moved

    # -- files ------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> MemFile:
        with self._mutex:
            parent, name = self._place(path)
            node = parent.entries.get(name)
            if isinstance(node, MemFile):
                return node
            if isinstance(node, MemDir):
                raise _error(EISDIR, path)
            if mode is not OpenMode.CREATE or node is not None:
                raise _error(ENOENT, path)
            self._require_inode(path)
            fresh = MemFile(self._free_bytes)
            self._change((parent, name, fresh))
            return fresh

    def put_file(self, path: str, file: MemFile) -> None:
        """Give ``file`` the name ``path``, and replace the file that had the name before."""
        with self._mutex:
            self._change((*self._place(path), file))

    def open_if_exists(self, path: str) -> MemFile | None:
        with self._mutex:
            return self.open(path, OpenMode.READ) if self.exists(path) else None

    def open_stream(self, path: str) -> io.BufferedReader:
        file = self.open(path, OpenMode.READ)
        raw: Any = io.BytesIO(file.read_at(0, file.size()))
        return io.BufferedReader(raw)

    def read_if_exists(self, path: str) -> bytes | None:
        file = self.open_if_exists(path)
        return None if file is None else file.read_at(0, file.size())

    def exists(self, path: str) -> bool:
        return isinstance(self._find(path), MemFile | MemDir)

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), MemDir)

    def real_path(self, path: str) -> str:
        """Return the normalized ``path``. No link needs to be resolved: none has a target."""
        return posixpath.normpath(path)

    def extent_if_exists(self, path: str) -> Extent | None:
        file = self._find(path)
        if not isinstance(file, MemFile):
            return None
        return Extent(size_bytes=file.size(), allocated_bytes=file.size())

    # -- names ------------------------------------------------------------------------------

    def list_dir(self, path: str, *, sized: str | None = None) -> list[DirEntry]:
        with self._mutex:
            return [
                DirEntry(
                    name=name,
                    is_dir=isinstance(node, MemDir),
                    size_bytes=_listed_size(name, node, sized),
                    is_link=isinstance(node, MemLink),
                )
                for name, node in sorted(self._dir(path).entries.items())
            ]

    def make_dirs(self, path: str) -> None:
        with self._mutex:
            place = ""
            for name in path.strip("/").split("/"):
                parent, place = self._dir(place or "/"), f"{place}/{name}"
                if name not in parent.entries:
                    self._require_inode(place)
                    self._change((parent, name, MemDir()))

    def make_link(self, path: str) -> None:
        """Create a dangling symbolic link."""
        with self._mutex:
            self._change((*self._place(path), MemLink()))

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            parent, name = self._place(source)
            node = parent.entries.get(name)
            if node is None:
                raise _error(ENOENT, source)
            place = self._place(target)
            replaced = place[0].entries.get(place[1])
            if isinstance(replaced, MemDir) and replaced.entries:
                raise _error(ENOTEMPTY, target)
            if replaced is not node:
                self._change((parent, name, None), (*place, node))

    def unlink_if_exists(self, path: str) -> None:
        with self._mutex:
            if self._find(path) is not None:
                self._change((*self._place(path), None))

    def remove_tree(self, path: str) -> None:
        """Remove the directory ``path`` name by name, so that a crash may leave some names. No
        effect if it does not exist."""
        with self._mutex:
            if self._find(path) is None:
                return
            directory = self._dir(path)
            for name, node in list(directory.entries.items()):
                if isinstance(node, MemDir):
                    self.remove_tree(f"{path}/{name}")
                else:
                    self._change((directory, name, None))
            self._change((*self._place(path), None))

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            directory = self._dir(path)
            above, place = set[tuple[MemDir, str]](), self._root
            for name in path.strip("/").split("/"):
                above.add((place, name))
                step = place.entries.get(name)
                place = step if isinstance(step, MemDir) else place
            certain, uncertain = list[_Change](), list[_Change]()
            for change in reversed(self._uncertain):
                if directory in change.directories or not above.isdisjoint(change.places):
                    above |= change.places  # What one of these names stood for before is over, too.
                    certain.append(change)
                else:
                    uncertain.append(change)
            self._make_certain(certain[::-1])
            self._uncertain = uncertain[::-1]

    def _make_certain(self, changes: list[_Change]) -> None:
        edits = [edit for change in changes for edit in change.edits]
        for directory, names in _applied(edits).items():
            directory.durable = names

    def _change(self, *edits: _Edit) -> None:
        for directory, name, node in edits:
            gone = directory.entries.pop(name, None)
            if node is not None:
                directory.entries[name] = node
            if isinstance(gone, MemFile) and gone.holders:
                self._unnamed.append(gone)
        named = edits[-1][2]
        syncs = named.syncs if isinstance(named, MemFile) else 0
        places = frozenset((directory, name) for directory, name, _ in edits)
        directories = frozenset(directory for directory, _ in places)
        self._uncertain.append(_Change(edits, places, directories, syncs))
        if len(self._uncertain) > _MOST_UNCERTAIN:
            self._make_certain(self._uncertain[: _MOST_UNCERTAIN // 2])
            del self._uncertain[: _MOST_UNCERTAIN // 2]

    def sync_side_by_side(
        self, syncs: Sequence[Callable[[], None]], beat: Callable[[], None]
    ) -> None:
        sync_in_order(syncs, beat)

    # -- the whole --------------------------------------------------------------------------

    def device(self, path: str) -> int:
        self._require(path)
        return self.device_number

    def space(self, path: str) -> Space:
        self._require(path)
        free_bytes = self._free_bytes()
        inodes = self.capacity_inodes
        return Space(
            total_bytes=2 * self.usable_bytes if free_bytes is None else self.capacity_bytes or 0,
            usable_bytes=self.usable_bytes if free_bytes is None else free_bytes,
            free_inodes=1000 if inodes is None else max(0, inodes - self.used_inodes()),
        )

    @property
    def has_locks(self) -> bool:
        """Whether a lock of :meth:`try_lock` is held."""
        return bool(self._locks)

    def used_bytes(self) -> int:
        """Return the bytes of all files that have a name or are open."""
        with self._mutex:
            self._unnamed = [file for file in self._unnamed if file.holders]
            nodes = (*self._walk(self._root), *self._unnamed)
            return sum(file.size() for file in {n for n in nodes if isinstance(n, MemFile)})

    def used_inodes(self) -> int:
        with self._mutex:
            return sum(1 for _ in self._walk(self._root))

    def is_unnamed(self, file: MemFile) -> bool:
        """Return whether closing the last descriptor of ``file`` frees its space."""
        return any(one is file for one in self._unnamed)

    def names_in(self, path: str) -> int:
        """Return the number of names in directory ``path``; 0 if ``path`` is not a directory."""
        found = self._find(path)
        return len(found.entries) if isinstance(found, MemDir) else 0

    def unheld_bytes(self, path: str) -> int:
        """Bytes of the files at and below ``path`` that no process has open."""
        found = self._find(path)
        nodes = () if found is None else self._walk(found)
        return sum(n.size() for n in nodes if isinstance(n, MemFile) and not n.holders)

    def _free_bytes(self) -> int | None:
        capacity = self.capacity_bytes
        return None if capacity is None else max(0, capacity - self.used_bytes())

    def _require_inode(self, path: str) -> None:
        if self.capacity_inodes is not None and self.used_inodes() >= self.capacity_inodes:
            raise _error(ENOSPC, path)

    def try_lock(self, path: str) -> MemFile | None:
        with self._mutex:
            if path in self._locks:
                return None
            self._locks.add(path)
            self.open(path, OpenMode.CREATE)
            return MemLock(lambda: self._locks.discard(path))

    def let_go(self, root: str) -> None:
        with self._mutex:
            self._locks = {path for path in self._locks if not path.startswith(f"{root}/")}

    def close_let_go(self, root: str) -> None:
        """Do nothing: this class has no descriptors."""

    # -- paths ------------------------------------------------------------------------------

    def _walk(self, node: Node) -> Iterator[Node]:
        """Yield ``node`` and all nodes below it."""
        yield node
        if isinstance(node, MemDir):
            for child in node.entries.values():
                yield from self._walk(child)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in path.split("/"):
            if name:
                node = node.entries.get(name) if isinstance(node, MemDir) else None
        return node

    def _place(self, path: str) -> tuple[MemDir, str]:
        """Return the parent directory of ``path`` and the name in it."""
        above, _, name = path.rpartition("/")
        return self._dir(above or "/"), name

    def _dir(self, path: str) -> MemDir:
        found = self._find(path)
        if isinstance(found, MemDir):
            return found
        raise _error(ENOENT if found is None else ENOTDIR, path)

    def _require(self, path: str) -> None:
        if self._find(path) is None:
            raise _error(ENOENT, path)


def _applied(edits: list[_Edit]) -> dict[MemDir, dict[str, Node]]:
    """Return the durable names of the edited directories after ``edits``."""
    found: dict[MemDir, dict[str, Node]] = {}
    for directory, name, node in edits:
        names = found.get(directory)
        if names is None:
            names = found[directory] = dict(directory.durable)
        names.pop(name, None)
        if node is not None:
            names[name] = node
    return found


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _error(number: int, path: str) -> OSError:
    return OSError(number, strerror(number), path)


def _listed_size(name: str, node: MemDir | MemFile | MemLink, sized: str | None) -> int | None:
    if isinstance(node, MemDir):
        return 0
    if sized is None or not name.endswith(sized):
        return None
    return node.size() if isinstance(node, MemFile) else 0
