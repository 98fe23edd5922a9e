"""Checks that a directory or process on this machine belongs to the broker."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from kraftjbod.core.ids import DirectoryId
from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.faults.fault import CannotPlay
from kraftjbod.gameday.faults.local_broker import (
    first_breakable,
    ignores_modes,
    require_broker_process,
    require_own_directory,
)

MINE = DirectoryId(bytes(15) + b"\x01")
OTHER = DirectoryId(bytes(15) + b"\x02")


def victim(path: Path, directory_id: DirectoryId | None = MINE) -> Victim:
    path.mkdir(exist_ok=True)
    (path / "meta.properties").write_text(f"version=1\ndirectory.id={MINE}\n")
    return Victim(broker_id=1, path=path, led=frozenset({0}), replicas=1, directory_id=directory_id)


def test_require_own_directory_compares_directory_id(tmp_path: Path) -> None:
    require_own_directory(victim(tmp_path))
    with pytest.raises(CannotPlay, match="not a broker of kraftjbod; use --observe"):
        require_own_directory(victim(tmp_path, None))
    with pytest.raises(CannotPlay, match=f"{OTHER}, but the one on this .* has {MINE}: run it on"):
        require_own_directory(victim(tmp_path, OTHER))
    elsewhere = replace(victim(tmp_path), path=tmp_path / "nowhere")
    with pytest.raises(CannotPlay, match="cannot be read on this machine: run it on"):
        require_own_directory(elsewhere)


def test_first_breakable_skips_metadata_dir_and_last_directory(tmp_path: Path) -> None:
    first, second = victim(tmp_path / "a"), victim(tmp_path / "b")
    assert first_breakable([first, second]) is first
    (first.path / "__cluster_metadata-0").mkdir()
    assert first_breakable([first, second]) is second
    with pytest.raises(CannotPlay, match="no disk can be taken"):
        first_breakable([second])
    with pytest.raises(CannotPlay, match="no disk can be taken"):
        first_breakable([])


def test_require_broker_process_checks_port_and_open_files(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CannotPlay, match="has no file of broker 1 open"):
            require_broker_process(1, port, [tmp_path])
        with (tmp_path / ".lock").open("w"):
            assert require_broker_process(1, port, [tmp_path]) == os.getpid()
    with pytest.raises(CannotPlay, match=f"listens on port {port}"):
        require_broker_process(1, port, [tmp_path])


def test_ignores_modes_is_true_for_root_only() -> None:
    bites = not ignores_modes(os.getpid())
    assert bites == (os.geteuid() != 0)
