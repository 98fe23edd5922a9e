"""Options, output and exit codes of ``kraftjbod-storage``, on real directories."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kraftjbod.cli.storage_tool import main
from kraftjbod.core.ids import Uuid
from kraftjbod.storage.identity.applied_metadata import (
    AppliedMetadata,
    read_applied_metadata,
    write_applied_metadata,
)
from kraftjbod.storage.identity.bootstrap import read_bootstrap
from kraftjbod.storage.vfs import RealVfs, write_atomically
from tests.faults.rig import batch

CLUSTER = "QkVnv0Z2S5mbQHjJ4m7r9A"


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "broker.properties"
    path.write_text(
        f"process.roles=broker\nnode.id=1\nlog.dirs={tmp_path}/a,{tmp_path}/b\n"
        f"metadata.log.dir={tmp_path}/m\n"
    )
    return str(path)


def format_node(config: str, *more: str) -> Result:
    return run("format", "-c", config, "-t", CLUSTER, *more)


def test_random_uuid_prints_a_uuid() -> None:
    result = run("random-uuid")
    assert result.exit_code == 0
    assert Uuid.parse(result.output.strip())
    assert Uuid.parse(json.loads(run("random-uuid", "--json").output)["uuid"])


def test_format_writes_meta_properties_that_info_shows(config: str, tmp_path: Path) -> None:
    result = format_node(config)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "Bootstrap metadata: eligible.leader.replicas.version=1, group.version=1, "
        "metadata.version=1001, transaction.version=2",
        f"Formatting metadata directory {tmp_path}/m with metadata.version 4.4-IV2-J1.",
        f"Formatting data directory {tmp_path}/a with metadata.version 4.4-IV2-J1.",
        f"Formatting data directory {tmp_path}/b with metadata.version 4.4-IV2-J1.",
    ]
    texts = {d: (tmp_path / d / "meta.properties").read_text() for d in "abm"}
    assert len({line for t in texts.values() for line in t.split() if "directory.id" in line}) == 3
    assert all(f"cluster.id={CLUSTER}\n" in text for text in texts.values())
    info = run("info", "-c", config)
    assert info.exit_code == 0
    assert f"Found log directories:\n  {tmp_path}/a\n  {tmp_path}/b\n" in info.output
    assert "Found metadata: {cluster.id=QkVnv0Z2S5mbQHjJ4m7r9A, directory.id=" in info.output
    assert "node.id=1, version=1}" in info.output
    reported = json.loads(run("info", "-c", config, "--json").output)
    assert (reported["logDirs"], reported["problems"]) == ([f"{tmp_path}/{d}" for d in "abm"], [])
    assert reported["metadata"][f"{tmp_path}/b"]["cluster.id"] == CLUSTER
    shutil.rmtree(tmp_path / "b")
    reported = json.loads(format_node(config, "--json", "-g").stdout)
    assert "error" in reported


def test_format_prints_ignored_keys_with_reason(config: str) -> None:
    path = Path(config)
    path.write_text(path.read_text() + "log.retention.hurs=1\nnum.io.threads=8\n")
    lines = format_node(config).output.splitlines()
    assert lines[0] == (
        f"{config}: there is no key log.retention.hurs, and it is ignored: "
        "did you mean log.retention.hours?"
    )
    assert lines[1].startswith(f"{config}: num.io.threads has no effect here, because one event")
    reported = json.loads(format_node(config, "--json", "-g").stdout)
    assert reported["ignoredKeys"] == ["log.retention.hurs", "num.io.threads"]


def test_format_of_formatted_node_requires_ignore_formatted(config: str, tmp_path: Path) -> None:
    format_node(config)
    again = format_node(config)
    assert again.exit_code == 1
    assert "is already formatted. Use --ignore-formatted" in again.output
    ignored = format_node(config, "--ignore-formatted")
    assert ignored.exit_code == 0
    assert ignored.output == "All of the log directories are already formatted.\n"


def test_format_refuses_empty_directory_whose_disk_vanished(config: str, tmp_path: Path) -> None:
    format_node(config)
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").mkdir()
    result = format_node(config, "-g")
    assert result.exit_code == 1
    assert f"{tmp_path}/b held directory" in result.output
    assert list((tmp_path / "b").iterdir()) == []


def test_format_with_ignore_formatted_formats_added_directory(config: str, tmp_path: Path) -> None:
    format_node(config)
    path = Path(config)
    path.write_text(path.read_text().replace("/b\n", f"/b,{tmp_path}/c\n"))
    assert format_node(config, "-g").exit_code == 0
    assert (tmp_path / "c" / "meta.properties").exists()


def test_format_refuses_other_cluster_other_node_and_duplicate_directory_id(
    config: str, tmp_path: Path
) -> None:
    format_node(config)
    other = run("format", "-c", config, "-t", "another", "-g")
    assert other.exit_code == 1
    assert f"Invalid cluster.id in: {tmp_path}/m/meta.properties" in other.output
    shutil.copy(tmp_path / "a" / "meta.properties", tmp_path / "b" / "meta.properties")
    doubled = format_node(config, "-g")
    assert doubled.exit_code == 1
    assert f"It was the ID of {tmp_path}/a, but also of {tmp_path}/b" in doubled.output
    assert "Duplicate directory ID" in run("info", "-c", config).output
    Path(config).write_text(Path(config).read_text().replace("node.id=1", "node.id=2"))
    assert "Stored node id 1 doesn't match" in format_node(config, "-g").output


def test_info_lists_every_problem(config: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("a file")
    result = run("info", "-c", config)
    assert result.exit_code == 1
    for problem in ("a is not formatted.", "b is not a directory", "m does not exist"):
        assert f"  {tmp_path}/{problem}" in result.output


def test_format_of_controller_requires_voters_and_writes_bootstrap_features(tmp_path: Path) -> None:
    config = tmp_path / "c.properties"
    base = f"process.roles=controller\nnode.id=9\nlog.dirs={tmp_path}/c\n"
    config.write_text(base)
    refused = format_node(str(config))
    assert "Because controller.quorum.voters is not set on this" in refused.output
    config.write_text(base + "controller.quorum.voters=9@127.0.0.1:9999\n")
    assert (
        "You cannot specify controller.quorum.voters and" in format_node(str(config), "-s").output
    )
    done = format_node(str(config), "-r", "3.7-IV2")
    assert done.exit_code == 0, done.output
    assert read_bootstrap(RealVfs(), f"{tmp_path}/c") == {"metadata.version": 17}


def test_only_owner_reads_bootstrap_with_keys_of_users(tmp_path: Path) -> None:
    config = tmp_path / "c.properties"
    config.write_text(
        f"process.roles=controller\nnode.id=9\nlog.dirs={tmp_path}/c\n"
        "controller.quorum.voters=9@127.0.0.1:9999\n"
    )
    done = format_node(str(config), "--add-scram", "SCRAM-SHA-256=[name=alice,password=pw]")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "c" / "bootstrap.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "c" / "meta.properties").stat().st_mode & 0o777 == 0o640


def test_format_reads_users_from_references_and_prints_no_password(tmp_path: Path) -> None:
    config, secrets = tmp_path / "c.properties", tmp_path / "users.properties"
    config.write_text(
        f"process.roles=controller\nnode.id=9\nlog.dirs={tmp_path}/c\n"
        "controller.quorum.voters=9@127.0.0.1:9999\n"
    )
    secrets.write_text("admin=SCRAM-SHA-256=[name=admin,password=canary]\n")
    failed = format_node(str(config), "--add-scram", f"${{file:{secrets}:absent}}")
    assert failed.exit_code == 1
    assert "--add-scram" in failed.output and "absent" in failed.output
    done = format_node(str(config), "--add-scram", f"${{file:{secrets}:admin}}")
    assert done.exit_code == 0, done.output
    assert "canary" not in done.output
    assert '"admin"' in (tmp_path / "c" / "bootstrap.json").read_text()


def test_format_reads_references_of_its_keys_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user who formats may have no access to the secrets of the daemon."""
    config = tmp_path / "c.properties"
    config.write_text(
        f"process.roles=controller\nnode.id=${{env:NODE}}\nlog.dirs={tmp_path}/c\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9093\nlisteners=CONTROLLER://127.0.0.1:9093\n"
        "ssl.keystore.password=${cred:missing}\n"
        "listener.name.controller.ssl.key.password=${cred:missing}\n"
    )
    assert "node.id: ${env:NODE}: the process does not" in format_node(str(config), "-s").output
    monkeypatch.setenv("NODE", "9")
    done = format_node(str(config), "-s")
    assert done.exit_code == 0, done.output
    assert "node.id=9" in (tmp_path / "c" / "meta.properties").read_text()


def test_forget_metadata_of_stopped_broker_marks_applied_metadata(
    config: str, tmp_path: Path
) -> None:
    format_node(config)
    vfs, metadata_dir = RealVfs(), f"{tmp_path}/m"
    assert "remembers no metadata log" in run("forget-metadata", "-c", config).output
    applied = AppliedMetadata(metadata_log_id=Uuid(b"l" * 16), offset=41)
    write_applied_metadata(vfs, metadata_dir, applied)
    lock = vfs.try_lock(f"{metadata_dir}/.lock")
    assert lock is not None
    running = run("forget-metadata", "-c", config)
    assert running.exit_code == 1
    assert "is running: stop it first" in running.output
    assert read_applied_metadata(vfs, metadata_dir) == applied
    lock.close()
    done = run("forget-metadata", "-c", config)
    assert done.exit_code == 0
    assert f"metadata log {applied.metadata_log_id}, followed up to offset 41" in done.output
    assert read_applied_metadata(vfs, metadata_dir) == replace(applied, is_forgotten=True)
    write_atomically(vfs, f"{metadata_dir}/applied-metadata.json", b"?")
    assert "applied-metadata.json is damaged" in run("forget-metadata", "-c", config).output
    assert read_applied_metadata(vfs, metadata_dir) is None


def test_fork_metadata_of_stopped_controller_marks_the_log(config: str, tmp_path: Path) -> None:
    controller = tmp_path / "c.properties"
    controller.write_text(
        f"process.roles=controller\nnode.id=9\nlog.dirs={tmp_path}/c\n"
        "controller.quorum.voters=9@127.0.0.1:9999\n"
    )
    assert "brokers have no metadata log" in run("fork-metadata", "-c", config).output
    format_node(str(controller))
    assert "holds no metadata log" in run("fork-metadata", "-c", str(controller)).output
    (tmp_path / "c" / "__cluster_metadata-0").mkdir()
    lock = RealVfs().try_lock(f"{tmp_path}/c/.lock")
    assert lock is not None
    assert "is running: stop it first" in run("fork-metadata", "-c", str(controller)).output
    lock.close()
    assert run("fork-metadata", "-c", str(controller)).exit_code == 0
    assert (tmp_path / "c" / "fork-metadata").exists()


def test_format_of_possibly_lost_controller_requires_replace_lost(
    config: str, tmp_path: Path
) -> None:
    home = tmp_path / "controller" / "metadata"
    controller = tmp_path / "c.properties"
    controller.write_text(
        f"process.roles=controller\nnode.id=9\nlog.dirs={home}\n"
        "controller.quorum.voters=9@127.0.0.1:9999\n"
    )
    # Brokers are formatted before or after their controller; formatted directories alone are no
    # trace.
    format_node(config)
    assert format_node(str(controller)).exit_code == 0
    write_applied_metadata(
        RealVfs(), f"{tmp_path}/m", AppliedMetadata(metadata_log_id=Uuid(b"l" * 16), offset=1)
    )
    shutil.rmtree(home)
    lost = format_node(str(controller))
    assert lost.exit_code == 1
    assert f"{tmp_path}/m belongs to a broker of that cluster and has been used" in lost.output
    assert "--replace-lost" in lost.output
    assert not home.exists()
    follower = tmp_path / "f.properties"
    follower.write_text(
        f"process.roles=controller\nnode.id=8\nlog.dirs={tmp_path}/follower\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9999\n"
    )
    followed = format_node(str(follower), "--no-initial-controllers")
    assert followed.exit_code == 0, "it receives the log from the other controllers"
    assert run("format", "-c", str(controller), "-t", "another").exit_code == 0, "a new cluster"
    shutil.rmtree(home)
    assert format_node(str(controller), "--replace-lost").exit_code == 0
    (tmp_path / "m" / "applied-metadata.json").unlink()
    (home / "meta.properties").unlink()
    assert f"{home}/bootstrap.json is left of it" in format_node(str(controller)).output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("-r", "3.7-IV2", "-f", "eligible.leader.replicas.version=1"),
            "needs metadata.version 4.3-IV0 or newer",
        ),
        (("-f", "eligible.leader.replicas.version=2"), "Unsupported level 2"),
        (("-r", "9.9"), "Unknown release version '9.9'"),
        (("-f", "x=1"), "Unsupported feature: x."),
        (("-f", "metadata.version=1"), "Unknown metadata.version 1. Supported: 3.6-IV2"),
        (("-s",), "You can only use --standalone on a controller."),
    ],
)
def test_format_refuses_wrong_features_and_options_with_reason(
    config: str, flags: tuple[str, ...], said: str
) -> None:
    result = format_node(config, *flags)
    assert result.exit_code == 1
    assert said in result.output


def test_format_of_controller_with_sasl_reads_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "controller.properties"
    path.write_text(
        f"process.roles=controller\nnode.id=8\nlog.dirs={tmp_path}/a\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9999\n"
        "listeners=CONTROLLER://127.0.0.1:9999\n"
        "listener.security.protocol.map=CONTROLLER:SASL_SSL\n"
        "sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.controller.protocol=PLAIN\n"
        f"plain.sasl.jaas.config=${{file:{tmp_path}/absent:users}}\n"
        "cluster.node.principals=User:node-{id}\n"
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
    )
    user = "SCRAM-SHA-512=[name=node-1,password=x]"
    result = format_node(str(path), "--standalone", "--add-scram", user)
    assert result.exit_code == 0, result.output


def test_info_with_missing_config_prints_one_line() -> None:
    result = run("info", "-c", "/nowhere/x.properties")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1


def test_dump_log_prints_batches_and_reports_trailing_bytes(tmp_path: Path) -> None:
    spoiled = bytearray(batch(1, base_offset=3))
    spoiled[-1] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch(3) + bytes(spoiled))
    result = run("dump-log", str(path))
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [(x["base_offset"], x["last_offset"], x["is_valid"]) for x in lines] == [
        (0, 2, True),
        (3, 3, False),
    ]
    reported = json.loads(run("dump-log", "--json", str(path)).output)
    assert reported["batches"] == [{"file": str(path), **line} for line in lines]
    path.write_bytes(batch(3) + b"torn")
    torn = run("dump-log", str(path))
    assert torn.exit_code == 1
    assert "4 bytes at" in torn.output
