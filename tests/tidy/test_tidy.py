"""The style of the house, kept by tests that read the source and run nothing of it."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Collection, Mapping
from graphlib import CycleError, TopologicalSorter

from kraftjbod.spark.pipeline_tool import JOBS
from tests.checkout import ROOT
from tests.tidy import file_map
from tests.tidy.house import PACKAGE, SourceFile, read_drawing, read_sources

DRAWING = read_drawing()
SOURCES = read_sources()
COLOUR = {path: source.colour for path, source in SOURCES.items()}

IMPURE_MODULES = frozenset(
    {"asyncio", "io", "os", "pathlib", "random", "socket", "structlog", "threading", "time"}
)
#: Time, chance, threads, sockets and files come from whoever builds: a simulation has its own.
HANDED_IN = frozenset(
    {"os", "random", "secrets", "signal", "socket", "subprocess", "threading", "time", "uuid"}
)
FORBIDDEN = {
    "PURE": IMPURE_MODULES | {"uuid", "secrets", "tempfile", "subprocess"},
    "DISK": frozenset({"asyncio", "pathlib", "structlog"}) | HANDED_IN,
    "LOOP": frozenset({"pathlib"}) | HANDED_IN,
    "FRAME": IMPURE_MODULES | {"uuid", "secrets", "tempfile", "subprocess", "datetime"},
}
#: Files that need a module their colour forbids, each with its reason.
ALLOWED = {
    "storage/vfs.py": {
        "os": "the one file that touches the operating system's files",
        "threading": "the files of a dead disk are given up from beside its hung thread",
    },
    "storage/log_dirs/dir_executor.py": {"threading": "the threads that are handed in"},
    "storage/segments/segment_cache.py": {
        "threading": "the loop adds a log's segments while the directory thread loads others"
    },
    "storage/segments/trusted_bytes.py": {
        "threading": "the loop, movers and the scrub doubt what the directory thread trusts"
    },
    "net/connection.py": {
        "socket": "a listener's is shut down before it is closed",
        "threading": "what all connections of a thread read into",
    },
    "core/telemetry.py": {"structlog": "the door"},
}
#: Where a foreign OSError may be caught: the one judge of disks, the one of sockets.
#: The second asks the first for its judgement, once it is clear which of two dirs is to blame.
OSERROR_GATES = frozenset(
    {"storage/log_dirs/log_dir.py", "storage/log_dirs/outside_operations.py", "net/connection.py"}
)
#: Where an errno is an answer and not a failure, so that it may be turned into a value.
#: An OSError shows whether a descriptor is free, because EMFILE has no exception class.
ANSWERS = {"storage/vfs.py": {"FileNotFoundError", "BlockingIOError", "OSError"}}

MAX_FUNCTION_LINES = 70
#: Users import from these, so that their signs also say what.
PUBLIC_ROOMS = {"testing", "simulation", "spark"}
MAX_SIGN_LINES = 12


def each_source(check: Callable[[SourceFile], None]) -> Callable[[], None]:
    """One test of a check for all files; what it finds is listed by file."""

    def test() -> None:
        wrong: dict[str, str] = {}
        for path, source in SOURCES.items():
            try:
                check(source)
            except AssertionError as e:
                wrong[path] = str(e)
        assert wrong == {}

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


def functions(source: SourceFile) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(source.tree) if isinstance(node, kinds)]


def test_the_list_of_files_is_drawn_from_the_docstrings() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "run `make map`"


def test_every_room_is_drawn() -> None:
    assert {source.room for source in SOURCES.values()} == set(DRAWING.sees)


def circle(edges: Mapping[str, Collection[str]]) -> list[str]:
    """Names that lead back to the first of them; [] if none do."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_no_circle_of_files() -> None:
    assert circle({path: source.imported_files for path, source in SOURCES.items()}) == []


def test_no_circle_of_folders() -> None:
    """So that each folder can be read, tested and replaced without those above it."""
    edges: dict[str, set[str]] = {}
    for source in SOURCES.values():
        seen = {SOURCES[path].folder for path in source.imported_files}
        edges.setdefault(source.folder, set()).update(seen - {source.folder})
    assert circle(edges) == []


@each_source
def test_rooms_see_only_what_they_may(source: SourceFile) -> None:
    rooms = {SOURCES[path].room for path in source.imported_files} - {source.room}
    assert rooms <= DRAWING.sees[source.room]


@each_source
def test_colour_forbids_modules(source: SourceFile) -> None:
    forbidden = FORBIDDEN.get(COLOUR[source.path], frozenset())
    if source.room not in DRAWING.sees["testing.simulation"]:
        forbidden -= HANDED_IN - {"os"} if COLOUR[source.path] == "LOOP" else frozenset()
    used = source.top_modules & (forbidden - ALLOWED.get(source.path, {}).keys())
    assert used == set()


@each_source
def test_pure_and_disk_files_do_not_reach_loop_files(source: SourceFile) -> None:
    if COLOUR[source.path] in ("PURE", "DISK"):
        reached = {path: COLOUR[path] for path in source.imported_files}
        allowed = {"PURE"} if COLOUR[source.path] == "PURE" else {"PURE", "DISK"}
        assert {path for path, colour in reached.items() if colour not in allowed} == set()


@each_source
def test_foreign_packages_come_in_by_their_doors(source: SourceFile) -> None:
    foreign = source.top_modules - sys.stdlib_module_names - {"__future__"}
    outside = {
        package
        for package in foreign
        if not any(
            source.path == door or (door.endswith("/") and source.path.startswith(door))
            for door in DRAWING.doors.get(package, ())
        )
    }
    assert outside == set()


def catches_oserror(handler: ast.ExceptHandler, answers: set[str]) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    # A TimeoutError is what the loop's own deadlines raise, though Python files it under OSError.
    kinds = (getattr(builtins, name, None) for name in names - answers - {"TimeoutError"})
    return any(isinstance(kind, type) and issubclass(kind, OSError) for kind in kinds)


@each_source
def test_oserror_is_judged_in_one_place(source: SourceFile) -> None:
    handlers = [node for node in ast.walk(source.tree) if isinstance(node, ast.ExceptHandler)]
    if source.path not in OSERROR_GATES and COLOUR[source.path] != "WIRE":
        answers = ANSWERS.get(source.path, set())
        assert [node.lineno for node in handlers if catches_oserror(node, answers)] == []


@each_source
def test_no_exception_is_passed_over_in_silence(source: SourceFile) -> None:
    silent = [
        node.lineno
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body)
    ]
    assert silent == []


@each_source
def test_aiofiles_always_names_its_executor(source: SourceFile) -> None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("aiofiles."):
            assert "executor" in {keyword.arg for keyword in node.keywords}, node.lineno


@each_source
def test_functions_fit_on_a_screen(source: SourceFile) -> None:
    long = [
        (function.name, (function.end_lineno or 0) - function.lineno + 1)
        for function in functions(source)
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@each_source
def test_every_file_says_its_colour_and_what_it_is_for(source: SourceFile) -> None:
    assert source.colour, (
        "the docstring begins with PURE, DISK, LOOP, WIRE or FRAME and a full stop"
    )
    assert source.purpose


@each_source
def test_suppressions_carry_a_reason(source: SourceFile) -> None:
    bare = [
        number
        for number, line in enumerate(source.text.splitlines(), 1)
        if re.search(r"#\s*(noqa|type:\s*ignore)", line)
        and not re.search(r"(noqa: [A-Z0-9, ]+|type: ignore\[[a-z-]+\])\s*(-|#) \S", line)
    ]
    assert bare == []


def test_signs_hold_a_docstring_only() -> None:
    for sign in sorted(PACKAGE.rglob("__init__.py")):
        tree = ast.parse(sign.read_text())
        text = ast.get_docstring(tree)
        # The package's own says its version too.
        is_open = sign.parent == PACKAGE or sign.parent.name in PUBLIC_ROOMS
        assert text and (len(tree.body) == 1 or is_open), sign
        assert len(text.splitlines()) <= MAX_SIGN_LINES, sign


def test_every_file_has_a_test() -> None:
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    untested = [
        path
        for path, source in SOURCES.items()
        if f"test_{source.path.split('/')[-1]}" not in tests
        and f"test_{source.path.split('/')[0]}_{source.path.split('/')[-1]}" not in tests
    ]
    assert untested == []


def test_no_file_is_dead() -> None:
    """Each file is imported by another, or a launcher, the package's scripts or the pipeline's
    tool start it, or users import it from a public room."""
    imported = set().union(*(source.imported_files for source in SOURCES.values()))
    launchers = "\n".join(path.read_text() for path in sorted((ROOT / "bin").iterdir()))
    started = (ROOT / "pyproject.toml").read_text() + (ROOT / "Makefile").read_text() + launchers
    started += "".join(f"\nspark.{job}.{job}_job" for job in JOBS)
    signs = (sign for sign in PACKAGE.rglob("__init__.py") if sign.parent.name in PUBLIC_ROOMS)
    started += "".join(sign.read_text() for sign in signs)
    dead = [
        path
        for path in SOURCES
        if path not in imported and path.removesuffix(".py").replace("/", ".") not in started
    ]
    assert dead == []


def telemetry_events() -> dict[str, list[tuple[str, str]]]:
    """Event names with the level and file of each place that emits them."""
    events: dict[str, list[tuple[str, str]]] = {}
    levels = {"debug", "info", "warning", "error", "critical", "exception"}
    for path, source in SOURCES.items():
        for node in ast.walk(source.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            target = ast.unparse(node.func.value)
            if node.func.attr in levels and target.split(".")[-1].strip("_") in ("log", "logger"):
                first = node.args[0] if node.args else None
                name = first.value if isinstance(first, ast.Constant) else ast.dump(node)
                events.setdefault(str(name), []).append((node.func.attr, path))
    return events


def test_events_are_unique_snake_case_literals() -> None:
    events = telemetry_events()
    assert events
    assert [name for name in events if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    assert {name: places for name, places in events.items() if len(places) > 1} == {}


def test_every_warning_is_explained_by_a_test() -> None:
    quiet = {"debug", "info"}
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    loud = {
        name
        for name, places in telemetry_events().items()
        if any(level not in quiet for level, _ in places)
    }
    assert sorted(name for name in loud if name not in tests) == []


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX)\b")
    left = [path for path, source in SOURCES.items() if words.search(source.text)]
    assert left == []
