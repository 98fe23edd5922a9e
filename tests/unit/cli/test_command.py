"""What all tools share: settings, pairs, and how they end."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kraftjbod.cli import command
from kraftjbod.core.errors import ConfigError, OperatingError


def test_pairs_keep_what_follows_the_first_equals_sign() -> None:
    assert command.parse_pairs(("a=1", "b=x=y", "a=2"), "--p") == {"a": "2", "b": "x=y"}
    for bad in ("novalue", "=x"):
        with pytest.raises(click.BadParameter):
            command.parse_pairs((bad,), "--p")


def test_client_settings_come_from_the_command_config(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5\nclient.id=me\n")
    assert command.make_client("h:1", str(config)).request_timeout_ms == 5


@pytest.mark.parametrize("text", ["security.protocol=SSL", "request.timeout.ms=soon", "a=\\u00"])
def test_settings_that_cannot_be_honoured_are_refused(tmp_path: Path, text: str) -> None:
    config = tmp_path / "client.properties"
    config.write_text(text)
    with pytest.raises(ConfigError):
        command.make_client("h:1", str(config))


def test_a_missing_command_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        command.make_client("h:1", str(tmp_path / "nowhere"))


def test_an_expected_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        raise OperatingError("two\nlines")

    with pytest.raises(SystemExit) as e:
        command.run(work(), failed="went wrong")
    assert e.value.code == 1
    assert capsys.readouterr().err == "went wrong: two lines\n"


def test_an_interrupt_ends_with_the_shells_code() -> None:
    async def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as e:
        command.run(work())
    assert e.value.code == 130


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_told_in_words(size: int, text: str) -> None:
    assert command.size_text(size) == text
