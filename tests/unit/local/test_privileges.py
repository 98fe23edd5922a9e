"""``choose_privileges``: file modes must exclude daemons, so that a disk can be broken."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kraftjbod.local.privileges import Privileges, chmod_bites, choose_privileges

needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root ignores file modes")


@needs_setpriv
def test_chmod_excludes_daemons_with_chosen_privileges(tmp_path: Path) -> None:
    assert chmod_bites(choose_privileges(tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_choose_privileges_gives_directories_to_the_chosen_user(tmp_path: Path) -> None:
    chosen = choose_privileges(tmp_path)
    chosen.give(tmp_path)
    owner = (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    assert owner == (chosen.owner or (0, 0))


@needs_root
def test_chmod_does_not_exclude_root_with_all_capabilities(tmp_path: Path) -> None:
    assert not chmod_bites(Privileges(description="as root"), tmp_path)


def test_choose_privileges_switches_the_user_of_root_only(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert choose_privileges(tmp_path).command_prefix == ()
    else:
        assert choose_privileges(tmp_path).command_prefix[0] == "setpriv"
