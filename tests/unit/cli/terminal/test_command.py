"""Options, output and exit codes that all tools share."""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import kraftjbod
from kraftjbod.cli.terminal import command
from kraftjbod.core.errors import ConfigError, OperatingError
from kraftjbod.protocol import record_scans
from tests.checkout import ROOT

_PROJECT = (ROOT / "pyproject.toml").read_text()


def test_parse_pairs_splits_at_first_equals_sign() -> None:
    assert command.parse_pairs(("a=1", "b=x=y", "a=2"), "--p") == {"a": "2", "b": "x=y"}
    for bad in ("novalue", "=x"):
        with pytest.raises(click.BadParameter):
            command.parse_pairs((bad,), "--p")


def test_make_client_reads_settings_from_command_config(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5\nclient.id=me\n")
    assert command.make_client("h:1", str(config)).request_timeout_ms == 5


def test_command_config_may_have_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("client.id=${env:CLIENT}\nsasl.jaas.config=${env:NONE}\n")
    monkeypatch.setenv("CLIENT", "me")
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: \${env:NONE}: "):
        command.make_client("h:1", str(config))
    assert command.read_properties(str(config), ["client.id"]) == {"client.id": "me"}
    monkeypatch.setenv("NONE", "canary")
    assert command.client_settings(str(config)).client_id == "me"


@pytest.mark.parametrize("text", ["security.protocol=SSL", "request.timeout.ms=soon", "a=\\u00"])
def test_make_client_refuses_unsupported_and_invalid_settings(tmp_path: Path, text: str) -> None:
    config = tmp_path / "client.properties"
    config.write_text(text)
    with pytest.raises(ConfigError):
        command.make_client("h:1", str(config))


def test_make_client_with_missing_command_config_raises_config_error_with_its_path(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        command.make_client("h:1", str(tmp_path / "nowhere"))


def _tool(error: BaseException | None = None) -> command.Tool:
    @command.tool()
    @command.connection_options
    @command.json_option
    def probe(cluster: command.ClusterAddress, as_json: bool) -> None:
        with command.Answer(as_json=as_json) as answer:
            answer.say(f"asking {cluster.bootstrap_server}", asked=[cluster.timeout_ms])
            answer.say("and again", asked=[1])
            if error is not None:
                raise error

    return probe


def _run(*words: str, error: BaseException | None = None) -> Result:
    return CliRunner().invoke(_tool(error), ["--bootstrap-server", "h:1", *words])


def test_answer_prints_lines_or_one_document_with_error() -> None:
    assert _run().output == "asking h:1\nand again\n"
    assert _run("--json", "--timeout", "2.5").output == '{"version":1,"asked":[2500,1]}\n'
    failed = _run("--json", error=OperatingError("two\nlines"))
    assert (failed.exit_code, failed.stderr) == (1, "error: two lines\n")
    assert json.loads(failed.stdout) == {"version": 1, "asked": [10000, 1], "error": "two\nlines"}


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (OSError("no such disk"), 1, "error: no such disk\n"),
        (click.ClickException("not here"), 1, "error: not here\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_tool_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, reported: str
) -> None:
    done = _run(error=error)
    assert (done.exit_code, done.stderr) == (code, reported)


def test_tool_usage_error_is_one_line_that_names_the_help() -> None:
    done = CliRunner().invoke(_tool(), ["--jsn"], prog_name="kraftjbod-probe")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: No such option '--jsn'. Did you mean '--json'? (kraftjbod-probe --help)\n"
    )


def _loose_tool() -> command.Tool:
    @command.tool()
    @functools.partial(command.connection_options, required=False, old_config="--consumer.config")
    def probe(cluster: command.ClusterAddress) -> None:
        click.echo(cluster.client().request_timeout_ms)

    return probe


def test_optional_bootstrap_server_is_required_when_used() -> None:
    """The option is not required, so that a command of a tool can print its help without an
    address."""
    done = CliRunner().invoke(_loose_tool(), [], prog_name="kraftjbod-probe")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: Missing option '--bootstrap-server'.")


def test_connection_options_accept_old_name_of_command_config(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=5\n")
    words = ["--bootstrap-server", "h:1", "--consumer.config", str(config)]
    assert CliRunner().invoke(_loose_tool(), words).output == "5\n"
    done = CliRunner().invoke(_loose_tool(), [*words, "--command-config", str(config)])
    assert (done.exit_code, "give one of them" in done.stderr) == (2, True)


TOOLS = sorted(path.name for path in (ROOT / "bin").iterdir())
# Has subcommands, which need Spark.
_PIPELINE = "kraftjbod-pipeline"
# These create clusters or read disks, and connect to no cluster.
_WITHOUT_CLUSTER = ("kraftjbod-storage", "kraftjbod-local", "kraftjbod-dump-log")
# Kafka's lines are machine-readable already, and Kafka's flags set the timeouts.
_MEASURING = ("kraftjbod-producer-perf-test", "kraftjbod-consumer-perf-test")
# Its subcommands are Kafka's, each with its own options.
_BY_COMMAND = "kraftjbod-cluster"
# Commands of kraftjbod-local that write files of configurations and keys.
_WRITING_FILES = ("samples", "certificates")


@pytest.mark.parametrize("name", [name for name in TOOLS if name != _PIPELINE])
def test_tools_have_version_and_json_and_those_of_a_cluster_timeout(name: str) -> None:
    (line,) = [text for text in _PROJECT.splitlines() if text.startswith(f"{name} = ")]
    module, _, function = line.split('"')[1].partition(":")
    root = getattr(importlib.import_module(module), function)
    if not isinstance(root, click.Command):
        return  # A daemon.
    done = CliRunner().invoke(root, ["--version"], prog_name=name)
    assert done.output == f"{name} {record_scans.with_form(kraftjbod.__version__)}\n"
    if name in _MEASURING:
        return
    parts = list(root.commands.values()) if isinstance(root, click.Group) else [root]
    for part in parts:
        assert "--json" in _flags(part) or part.name in _WRITING_FILES
    for part in parts if name == _BY_COMMAND else [root]:
        assert ("--timeout" in _flags(part)) is (name not in _WITHOUT_CLUSTER)


def _flags(part: click.Command) -> set[str]:
    return {flag for parameter in part.params for flag in parameter.opts}
