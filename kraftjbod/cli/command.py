"""What every tool does the same way: its connection options, its end, its errors.

An error that somebody expected is one line on standard error and exit code 1; wrong usage is
exit code 2. Standard output holds results only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO, TypeVar

import click

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.core.properties import parse_properties

F = TypeVar("F", bound=Callable[..., Any])

#: How long a tool tries before it says that the cluster does not answer.
TOOL_TIMEOUT_MS: Final = 20_000
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EXIT_FAILED: Final = 1
_EXIT_INTERRUPTED: Final = 130


def connection_options(command: F) -> F:
    """``--bootstrap-server`` and ``--command-config``."""
    for option in (
        click.option(
            "--command-config",
            type=click.Path(dir_okay=False),
            help="Properties file with client settings (client.id, request.timeout.ms).",
        ),
        click.option(
            "--bootstrap-server",
            required=True,
            metavar="HOST:PORT,...",
            help="Brokers to ask first.",
        ),
    ):
        command = option(command)
    return command


def make_client(bootstrap_server: str, command_config: str | None = None) -> ClusterClient:
    """:raises ConfigError: for settings that this client cannot honour."""
    settings: dict[str, str] = {}
    if command_config is not None:
        try:
            text = Path(command_config).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read {command_config}: {e}") from e
        settings = parse_properties(text, command_config)
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if protocol != "PLAINTEXT":
        raise ConfigError(f"security.protocol={protocol}: only PLAINTEXT is spoken here")
    timeout = settings.get("request.timeout.ms", "20000")
    if not timeout.isdigit():
        raise ConfigError(f"request.timeout.ms={timeout}: expected milliseconds")
    return ClusterClient(
        bootstrap_server,
        client_id=settings.get("client.id", "kraftjbod-tools"),
        request_timeout_ms=int(timeout),
        retry_timeout_ms=TOOL_TIMEOUT_MS,
    )


def parse_pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """``key=value`` options as a mapping; the last of a repeated key wins."""
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", param_hint=option)
        pairs[key.strip()] = text
    return pairs


def run(work: Coroutine[Any, Any, None], *, failed: str = "error") -> None:
    """Run ``work`` to its end, and the process to its exit code if that is not good.

    :param failed: what stands before the message of an error.
    """
    try:
        asyncio.run(work)
        sys.stdout.flush()
    except KraftJbodError as e:
        fail(f"{failed}: {e}")
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except BrokenPipeError:
        reader_gone()


def progress(verb: str, *, beside: TextIO) -> AbstractContextManager[Callable[[int], None]]:
    """Gives a function that counts records, for people who watch standard error.

    :param beside: the tool's other stream; where that is a terminal, a count would be in the way.
    """
    if beside.isatty() or not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    # rich takes a tenth of a second.
    from kraftjbod.cli.progress import counter

    return counter(verb)


def size_text(size_bytes: float) -> str:
    """``1536`` as ``1.5 KiB``."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def reader_gone() -> NoReturn:
    """The end, where the reader of standard output has seen enough."""
    # Python would complain again when it flushes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_EXIT_FAILED)


def fail(message: str) -> NoReturn:
    """One line on standard error, and the end."""
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(_EXIT_FAILED)
