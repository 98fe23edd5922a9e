"""Tests of layers, imports and conventions. They parse the source and run none of it."""

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
from tests.tidy.sources import PACKAGE, SourceFile, read_architecture, read_sources

ARCHITECTURE = read_architecture()
SOURCES = read_sources()
LAYER = {path: source.layer for path, source in SOURCES.items()}

IMPURE_MODULES = frozenset(
    {"asyncio", "io", "os", "pathlib", "random", "socket", "structlog", "threading", "time"}
)
#: Time, random numbers, threads, sockets and files are parameters that a simulation replaces.
PARAMETERS = frozenset(
    {"os", "random", "secrets", "signal", "socket", "subprocess", "threading", "time", "uuid"}
)
FORBIDDEN = {
    "PURE": IMPURE_MODULES | {"uuid", "secrets", "tempfile", "subprocess"},
    "DISK": frozenset({"asyncio", "pathlib", "structlog"}) | PARAMETERS,
    "LOOP": frozenset({"pathlib"}) | PARAMETERS,
    "FRAME": IMPURE_MODULES | {"uuid", "secrets", "tempfile", "subprocess", "datetime"},
}
#: Files that need a module that their layer forbids, each with the reason.
ALLOWED = {
    "storage/vfs.py": {
        "os": "the one file that touches the operating system's files",
        "threading": "another thread closes the files of a failed disk while its thread hangs",
    },
    "storage/log_dirs/dir_executor.py": {"threading": "its threads are a parameter"},
    "storage/segments/segment_cache.py": {
        "threading": "the loop adds a log's segments while the directory thread loads others"
    },
    "storage/segments/trusted_bytes.py": {
        "threading": "the loop, movers and the scrub doubt what the directory thread trusts"
    },
    "net/connection.py": {
        "socket": "a listener's socket is shut down before it is closed",
        "threading": "all connections of a thread share a read buffer",
    },
    "core/telemetry.py": {"structlog": "the only file that uses structlog"},
}
#: Files that may catch an OSError. log_dir.py judges errors of disks, and connection.py those of
#: sockets. outside_operations.py finds out which of two directories failed and calls log_dir.py.
OSERROR_GATES = frozenset(
    {"storage/log_dirs/log_dir.py", "storage/log_dirs/outside_operations.py", "net/connection.py"}
)
#: Files that may convert these errors to return values, because they are expected results there.
#: OSError: EMFILE, which shows that no descriptor is free, has no exception class.
ANSWERS = {"storage/vfs.py": {"FileNotFoundError", "BlockingIOError", "OSError"}}

MAX_FUNCTION_LINES = 70
#: Users import from these packages, so that their ``__init__.py`` exports names.
PUBLIC_PACKAGES = {"testing", "simulation", "spark"}
MAX_INIT_LINES = 12


def each_source(check: Callable[[SourceFile], None]) -> Callable[[], None]:
    """Return a test that applies ``check`` to each file and lists the failures by file."""

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


def test_files_page_matches_docstrings() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "run `make map`"


def test_architecture_page_lists_each_package() -> None:
    assert {source.package for source in SOURCES.values()} == set(ARCHITECTURE.sees)


def cycle(edges: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of a cycle of ``edges``; [] if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_imports_of_files_have_no_cycle() -> None:
    assert cycle({path: source.imported_files for path, source in SOURCES.items()}) == []


def test_imports_of_folders_have_no_cycle() -> None:
    """Each folder can be read, tested and replaced without the folders that import it."""
    edges: dict[str, set[str]] = {}
    for source in SOURCES.values():
        seen = {SOURCES[path].folder for path in source.imported_files}
        edges.setdefault(source.folder, set()).update(seen - {source.folder})
    assert cycle(edges) == []


@each_source
def test_packages_import_only_allowed_packages(source: SourceFile) -> None:
    packages = {SOURCES[path].package for path in source.imported_files} - {source.package}
    assert packages <= ARCHITECTURE.sees[source.package]


@each_source
def test_files_import_no_module_that_their_layer_forbids(source: SourceFile) -> None:
    forbidden = FORBIDDEN.get(LAYER[source.path], frozenset())
    if source.package not in ARCHITECTURE.sees["testing.simulation"]:
        forbidden -= PARAMETERS - {"os"} if LAYER[source.path] == "LOOP" else frozenset()
    used = source.top_modules & (forbidden - ALLOWED.get(source.path, {}).keys())
    assert used == set()


@each_source
def test_pure_and_disk_files_do_not_import_loop_files(source: SourceFile) -> None:
    if LAYER[source.path] in ("PURE", "DISK"):
        reached = {path: LAYER[path] for path in source.imported_files}
        allowed = {"PURE"} if LAYER[source.path] == "PURE" else {"PURE", "DISK"}
        assert {path for path, layer in reached.items() if layer not in allowed} == set()


@each_source
def test_third_party_packages_are_imported_only_where_allowed(source: SourceFile) -> None:
    foreign = source.top_modules - sys.stdlib_module_names - {"__future__"}
    outside = {
        package
        for package in foreign
        if not any(
            source.path == importer or (importer.endswith("/") and source.path.startswith(importer))
            for importer in ARCHITECTURE.importers.get(package, ())
        )
    }
    assert outside == set()


def catches_oserror(handler: ast.ExceptHandler, answers: set[str]) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    # Deadlines of asyncio raise TimeoutError, which is a subclass of OSError.
    kinds = (getattr(builtins, name, None) for name in names - answers - {"TimeoutError"})
    return any(isinstance(kind, type) and issubclass(kind, OSError) for kind in kinds)


@each_source
def test_oserror_is_caught_only_by_the_files_that_judge_it(source: SourceFile) -> None:
    handlers = [node for node in ast.walk(source.tree) if isinstance(node, ast.ExceptHandler)]
    if source.path not in OSERROR_GATES and LAYER[source.path] != "WIRE":
        answers = ANSWERS.get(source.path, set())
        assert [node.lineno for node in handlers if catches_oserror(node, answers)] == []


@each_source
def test_exception_handlers_do_more_than_pass(source: SourceFile) -> None:
    silent = [
        node.lineno
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body)
    ]
    assert silent == []


@each_source
def test_aiofiles_calls_name_an_executor(source: SourceFile) -> None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("aiofiles."):
            assert "executor" in {keyword.arg for keyword in node.keywords}, node.lineno


@each_source
def test_functions_have_at_most_70_lines(source: SourceFile) -> None:
    long = [
        (function.name, (function.end_lineno or 0) - function.lineno + 1)
        for function in functions(source)
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@each_source
def test_file_docstrings_name_layer_and_purpose(source: SourceFile) -> None:
    assert source.layer, "the docstring begins with PURE, DISK, LOOP, WIRE or FRAME and a full stop"
    assert source.purpose


@each_source
def test_suppressions_of_checks_have_a_reason(source: SourceFile) -> None:
    bare = [
        number
        for number, line in enumerate(source.text.splitlines(), 1)
        if re.search(r"#\s*(noqa|type:\s*ignore)", line)
        and not re.search(r"(noqa: [A-Z0-9, ]+|type: ignore\[[a-z-]+\])\s*(-|#) \S", line)
    ]
    assert bare == []


def test_init_files_have_only_a_docstring() -> None:
    for init in sorted(PACKAGE.rglob("__init__.py")):
        tree = ast.parse(init.read_text())
        text = ast.get_docstring(tree)
        # kraftjbod/__init__.py also has the version.
        is_open = init.parent == PACKAGE or init.parent.name in PUBLIC_PACKAGES
        assert text and (len(tree.body) == 1 or is_open), init
        assert len(text.splitlines()) <= MAX_INIT_LINES, init


def test_product_files_have_test_files() -> None:
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    untested = [
        path
        for path, source in SOURCES.items()
        if f"test_{source.path.split('/')[-1]}" not in tests
        and f"test_{source.path.split('/')[0]}_{source.path.split('/')[-1]}" not in tests
    ]
    assert untested == []


def test_product_files_are_all_used() -> None:
    """A file is imported by another one, started by a script, or exported by a public package."""
    imported = set().union(*(source.imported_files for source in SOURCES.values()))
    launchers = "\n".join(path.read_text() for path in sorted((ROOT / "bin").iterdir()))
    started = (ROOT / "pyproject.toml").read_text() + (ROOT / "Makefile").read_text() + launchers
    started += "".join(f"\nspark.{job}.{job}_job" for job in JOBS)
    inits = (init for init in PACKAGE.rglob("__init__.py") if init.parent.name in PUBLIC_PACKAGES)
    started += "".join(init.read_text() for init in inits)
    dead = [
        path
        for path in SOURCES
        if path not in imported and path.removesuffix(".py").replace("/", ".") not in started
    ]
    assert dead == []


def telemetry_events() -> dict[str, list[tuple[str, str]]]:
    """Return the level and file of each call that logs an event, by event."""
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


def test_event_names_are_unique_snake_case_literals() -> None:
    events = telemetry_events()
    assert events
    assert [name for name in events if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    assert {name: places for name, places in events.items() if len(places) > 1} == {}


def test_warning_events_are_named_by_a_test() -> None:
    quiet = {"debug", "info"}
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    loud = {
        name
        for name, places in telemetry_events().items()
        if any(level not in quiet for level, _ in places)
    }
    assert sorted(name for name in loud if name not in tests) == []


def test_product_files_have_no_todo() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX)\b")
    left = [path for path, source in SOURCES.items() if words.search(source.text)]
    assert left == []
