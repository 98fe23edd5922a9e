"""WIRE. Behaviour that all tools share: options, connection to a cluster, errors, exit codes.

* Standard output contains results only.
* An expected error is one line on standard error that begins with ``error:``, with exit code 1.
  Wrong usage is such a line with exit code 2. An interrupt is exit code 130.
* A tool that uses a cluster takes :func:`connection_options` and works inside
  :meth:`ClusterAddress.connect`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TextIO, TypeVar, cast

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient, parse_bootstrap
from kraftjbod.cli.clients.first_contact import controllers_at, reach
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.core.properties import parse_properties
from kraftjbod.core.version import package_version
from kraftjbod.net.dialer import PLAIN, Dialer

if TYPE_CHECKING:
    from kraftjbod.cli.clients.client_settings import ClientSettings
    from kraftjbod.cli.clients.controller_client import ControllerClient

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=click.Command)

#: Time after which a tool reports that the cluster does not respond.
TOOL_TIMEOUT_MS: Final = 10_000
#: Minimum timeout of long-running tools after the first contact: long enough for an election.
PATIENCE_MS: Final = 20_000
_EXIT_FAILED: Final = 1
_EXIT_INTERRUPTED: Final = 130


# --- the tool itself -----------------------------------------------------------------------------


class _OneLineEnds(click.Command):
    """A command that prints each expected error as one line, and exits with its code."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        plain_main: Any = super().main
        if not standalone_mode:
            return plain_main(*args, standalone_mode=False, **extra)
        try:
            code = plain_main(*args, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as e:
            e.show()
            sys.exit(e.exit_code)
        except click.UsageError as e:
            tool = "" if e.ctx is None else f" ({e.ctx.command_path} --help)"
            fail(f"{e.format_message()}{tool}", code=e.exit_code)
        except click.ClickException as e:
            fail(e.format_message(), code=e.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(_EXIT_INTERRUPTED)
        except BrokenPipeError:
            exit_on_closed_output()
        except (KraftJbodError, OSError) as e:
            fail(str(e))
        sys.exit(code if isinstance(code, int) else 0)


class Tool(_OneLineEnds):
    """The command of a tool without subcommands. An expected error is printed as one line."""


class ToolGroup(_OneLineEnds, click.Group):
    """The root of a tool with subcommands. An expected error is printed as one line."""


def tool(kind: type[Tool] = Tool, **settings: Any) -> Callable[[Callable[..., Any]], Tool]:
    """Return a decorator that makes a function the command of a tool; ``settings`` are click's."""
    return lambda function: _made(kind, function, settings)


def tool_group(
    kind: type[ToolGroup] = ToolGroup, **settings: Any
) -> Callable[[Callable[..., Any]], ToolGroup]:
    """Return a decorator that makes a function the root of a tool with several commands."""
    return lambda function: _made(kind, function, settings)


def _made(kind: type[C], function: Callable[..., Any], settings: dict[str, Any]) -> C:
    version = click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    )
    names = {"help_option_names": ["-h", "--help"]}
    return click.command(cls=kind, context_settings=names, **settings)(version(function))


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked:
        return
    from kraftjbod.protocol import record_scans

    click.echo(f"{context.command_path} {record_scans.with_form(package_version())}")
    context.exit()


# --- reaching a cluster --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """The address of a cluster, the client's settings file, and the timeout of the first
    contact."""

    bootstrap_server: str
    command_config: str | None = None
    timeout_ms: int = TOOL_TIMEOUT_MS

    def client(self, *, patience_ms: int = 0) -> ClusterClient:
        """Return a client that has not connected yet.

        :param patience_ms: timeout of requests, if longer than the tool's timeout.
        :raises ConfigError: the settings are not supported.
        :raises click.UsageError: no address was given.
        """
        if not self.bootstrap_server:
            raise click.UsageError("Missing option '--bootstrap-server'.")
        timeout_ms = max(self.timeout_ms, patience_ms)
        return make_client(self.bootstrap_server, self.command_config, timeout_ms=timeout_ms)

    @asynccontextmanager
    async def connect(self, *, patience_ms: int = 0) -> AsyncIterator[ClusterClient]:
        """Context with a connected client, which knows the brokers.

        :param patience_ms: timeout of later requests, if longer than the tool's timeout.
        :raises WrongPortError: controllers listen at the address.
        :raises ConnectionLostError: no broker responds within the tool's timeout.
        """
        async with self.client(patience_ms=patience_ms) as client:
            addresses = parse_bootstrap(self.bootstrap_server)
            await reach(client, addresses, timeout_ms=self.timeout_ms, report=report)
            yield client


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAddress:
    """The addresses of some or all controllers of a cluster, the client's settings file, and the
    timeout of requests."""

    bootstrap_controller: str
    command_config: str | None = None
    timeout_ms: int = TOOL_TIMEOUT_MS

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ControllerClient]:
        """Context with a client of the active controller, which skips dead controllers and
        followers.

        :raises ConfigError: the settings cannot be used.
        :raises WrongPortError: a broker listens at an address.
        :raises ConnectionLostError: no controller responds within the tool's timeout.
        """
        # Importing the RPC's messages takes a tenth of a second, and brokers do not need them.
        from kraftjbod.cli.clients.controller_client import ControllerClient

        addresses, timeout_ms = self.bootstrap_controller, self.timeout_ms
        dialer = controller_dialer(self.command_config)
        async with (
            controllers_at(addresses, timeout_ms=timeout_ms, report=report),
            ControllerClient(addresses, timeout_ms=timeout_ms, dialer=dialer) as client,
        ):
            yield client


config_option = click.option(
    "--command-config",
    type=click.Path(dir_okay=False),
    help="Properties file with client settings: security.protocol, ssl.*, sasl.*, client.id.",
)
timeout_option = click.option(
    "--timeout",
    "give_up_ms",
    type=click.FloatRange(0.1, 3600),
    default=TOOL_TIMEOUT_MS / 1000,
    show_default=True,
    metavar="SECONDS",
    callback=lambda _context, _parameter, seconds: round(seconds * 1000),
    help="Time to reach the cluster, and to wait for a response.",
)


def format_option(*styles: str, help: str) -> Callable[[F], F]:
    """Add the option ``--format``, passed as ``style``; the first of ``styles`` is the default."""
    return click.option(
        "--format",
        "style",
        type=click.Choice(styles),
        default=styles[0],
        show_default=True,
        help=help,
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def server_options(command: F, *, required: bool = True, old_config: str | None = None) -> F:
    """Add ``--bootstrap-server`` and ``--command-config``, passed as ``cluster``, a ClusterAddress.

    :param required: if false, the address may be missing until it is used.
    :param old_config: another name of ``--command-config``, which Kafka still accepts.
    """

    def given(
        *args: Any,
        bootstrap_server: str | None,
        command_config: str | None,
        old_config_file: str | None = None,
        **flags: Any,
    ) -> object:
        if command_config is not None and old_config_file is not None:
            raise click.UsageError(f"--command-config and {old_config}: give one of them")
        cluster = ClusterAddress(
            bootstrap_server=bootstrap_server or "",
            command_config=command_config if old_config_file is None else old_config_file,
        )
        return command(*args, cluster=cluster, **flags)

    made = functools.wraps(command)(given)
    if old_config is not None:
        made = click.option(
            old_config,
            "old_config_file",
            type=click.Path(dir_okay=False),
            help="Older name of --command-config.",
        )(made)
    address = click.option(
        "--bootstrap-server",
        required=required,
        metavar="HOST:PORT,...",
        help="Addresses of brokers for the first connection.",
    )
    return cast(F, address(config_option(made)))


def connection_options(command: F, *, required: bool = True, old_config: str | None = None) -> F:
    """Add the options of :func:`server_options` and ``--timeout``."""

    @functools.partial(server_options, required=required, old_config=old_config)
    @timeout_option
    @functools.wraps(command)
    def given(*args: Any, cluster: ClusterAddress, give_up_ms: int, **flags: Any) -> object:
        return command(*args, cluster=replace(cluster, timeout_ms=give_up_ms), **flags)

    return cast(F, given)


def bootstrap_options(
    controllers_help: str = "Addresses of controllers instead of brokers; one must be active.",
) -> Callable[[F], F]:
    """Add ``--bootstrap-server`` and ``--bootstrap-controller``, of which one must be given.

    The command gets ``bootstrap_server`` and ``bootstrap_controller``, one of which is None.
    """

    def decorate(command: F) -> F:
        @click.option(
            "--bootstrap-server",
            metavar="HOST:PORT,...",
            help="Addresses of brokers for the first connection.",
        )
        @click.option("--bootstrap-controller", metavar="HOST:PORT,...", help=controllers_help)
        @functools.wraps(command)
        def given(
            *args: Any,
            bootstrap_server: str | None,
            bootstrap_controller: str | None,
            **flags: Any,
        ) -> object:
            require_one_address(bootstrap_server, bootstrap_controller)
            return command(
                *args,
                bootstrap_server=bootstrap_server,
                bootstrap_controller=bootstrap_controller,
                **flags,
            )

        return cast(F, given)

    return decorate


def require_one_address(bootstrap_server: str | None, bootstrap_controller: str | None) -> None:
    """Check that exactly one of the two options was given.

    :raises click.UsageError: none or both were given.
    """
    if (bootstrap_server is None) == (bootstrap_controller is None):
        raise click.UsageError(
            "Exactly one of --bootstrap-server or --bootstrap-controller must be specified"
        )


def either_options(command: F) -> F:
    """Add the options of :func:`connection_options` and ``--bootstrap-controller``.

    The command gets ``where``, a :class:`ClusterAddress` or a :class:`ControllerAddress`.
    """

    @bootstrap_options()
    @config_option
    @timeout_option
    @functools.wraps(command)
    def given(
        *args: Any,
        bootstrap_server: str | None,
        bootstrap_controller: str | None,
        command_config: str | None,
        give_up_ms: int,
        **flags: Any,
    ) -> object:
        where: ClusterAddress | ControllerAddress
        if bootstrap_server is not None:
            where = ClusterAddress(
                bootstrap_server=bootstrap_server,
                command_config=command_config,
                timeout_ms=give_up_ms,
            )
        else:
            assert bootstrap_controller is not None
            where = ControllerAddress(
                bootstrap_controller=bootstrap_controller,
                command_config=command_config,
                timeout_ms=give_up_ms,
            )
        return command(*args, where=where, **flags)

    return cast(F, given)


def make_client(
    bootstrap_server: str,
    command_config: str | None = None,
    *,
    timeout_ms: int = PATIENCE_MS,
) -> ClusterClient:
    """Return a client that has not connected yet.

    :param command_config: path of a file with client settings, or None.
    :param timeout_ms: timeout of retries, and of requests unless the file has another.
    :raises ConfigError: the settings are not supported by this client.
    """
    if command_config is None:
        return ClusterClient(
            bootstrap_server, request_timeout_ms=timeout_ms, retry_timeout_ms=timeout_ms
        )
    settings = client_settings(command_config)
    return ClusterClient(
        bootstrap_server,
        client_id=settings.client_id,
        request_timeout_ms=settings.request_timeout_ms or timeout_ms,
        retry_timeout_ms=timeout_ms,
        dialer=settings.make_dialer(command_config),
        login=settings.make_login(command_config),
    )


def client_settings(path: str) -> ClientSettings:
    """Return the settings in a file of ``--command-config``.

    :raises ConfigError: the file cannot be read, or a setting is wrong.
    """
    # Most calls have no file, and the import takes a tenth of a second.
    from kraftjbod.cli.clients.client_settings import ClientSettings

    return ClientSettings.from_values(read_properties(path), path)


def controller_dialer(command_config: str | None) -> Dialer:
    """Return the dialer for connections to controllers.

    :param command_config: path of a file with client settings, or None.
    :raises ConfigError: the settings cannot be used.
    """
    if command_config is None:
        return PLAIN
    settings = client_settings(command_config)
    return settings.make_controller_dialer(command_config)


# --- what goes in and comes out ------------------------------------------------------------------


def read_file(path: str) -> str:
    """Return the content of a file that the operator named.

    :raises ConfigError: the file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {path}: {e}") from e


def read_properties(path: str, keys: Collection[str] | None = None) -> dict[str, str]:
    """Return the values of a properties file, with references such as ``${env:NAME}`` replaced.

    :param keys: the keys whose values are needed, others are left out; None for all.
    :raises ConfigError: the file cannot be read or is malformed, or a reference cannot be replaced.
    """
    return replace_references(parse_properties(read_file(path), path), path, keys)


def replace_references(
    values: Mapping[str, str], source: str, keys: Collection[str] | None = None
) -> dict[str, str]:
    """Return ``values`` with references such as ``${env:NAME}`` replaced.

    :param source: path or other name of the values, for error messages.
    :param keys: the keys whose values are needed, others are left out; None for all.
    :raises ConfigError: naming ``source``, the key and the reference that cannot be replaced.
    """
    # These import pydantic, which would double the cost of a health check without a file.
    from kraftjbod.core.config_references import resolve_references
    from kraftjbod.core.reference_reader import ReferenceReader

    reader = ReferenceReader(os.environ, os.getcwd())
    return resolve_references(values, reader.read_reference, source=source, keys=keys).values


def echo_json(document: object) -> None:
    """Print one JSON document as a line."""
    click.echo(json.dumps(document, separators=(",", ":")))


class Answer:
    """The output of a tool: lines as they come, or everything as one JSON document.

    Use as a context manager around the work. The document is printed at the end. After an error it
    has the results so far, and the error as ``error``.

    :param report: prints lines.
    """

    def __init__(
        self, *, as_json: bool = False, report: Callable[[str], object] = click.echo
    ) -> None:
        self._as_json = as_json
        self._report = report
        self._document: dict[str, Any] = {"version": 1}

    @property
    def is_json(self) -> bool:
        return self._as_json

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if not self._as_json:
            return
        if isinstance(error, KraftJbodError):
            self._document["error"] = str(error)
        echo_json(self._document)

    def say(self, line: str | None, **facts: Any) -> None:
        """Print ``line`` unless it is None; with ``--json`` add ``facts`` to the document instead.

        A list is appended to an earlier one.
        """
        if not self._as_json:
            if line is not None:
                self._report(line)
            return
        for name, fact in facts.items():
            before = self._document.get(name)
            self._document[name] = [*before, *fact] if isinstance(before, list) else fact


def answering(command: F) -> F:
    """Add ``--json`` to a command, which gets an :class:`Answer` as its first argument."""

    @json_option
    @functools.wraps(command)
    def given(*args: Any, as_json: bool, **flags: Any) -> object:
        with Answer(as_json=as_json) as answer:
            return command(answer, *args, **flags)

    return cast(F, given)


def parse_pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """Return ``key=value`` options as a mapping; the last value of a repeated key counts.

    :param option: name of the option, for the error.
    :raises click.BadParameter: a value has another form.
    """
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        pairs[key.strip()] = text
    return pairs


def parse_list(text: str | None) -> list[str]:
    """Split text at commas, without spaces and empty parts; None is an empty list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def progress(verb: str, *, beside: TextIO) -> AbstractContextManager[Callable[[int], None]]:
    """Return a context with a function that adds to a count of records on standard error.

    :param beside: the tool's other stream. No count is shown if it is a terminal, or if standard
        error is not a terminal.
    """
    if beside.isatty() or not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    # rich takes a tenth of a second.
    from kraftjbod.cli.terminal.progress import counter

    return counter(verb)


# --- the end -------------------------------------------------------------------------------------


def report(text: str) -> None:
    """Print one line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def exit_on_closed_output() -> NoReturn:
    """Exit with code 1 because the reader of standard output has closed it."""
    # Otherwise Python's flush at the exit would fail too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_EXIT_FAILED)


def fail(message: str, *, code: int = _EXIT_FAILED) -> NoReturn:
    """Print ``error:`` and the message as one line on standard error, and exit with ``code``."""
    sys.stdout.flush()
    report("error: " + " ".join(message.split()))
    sys.exit(code)
