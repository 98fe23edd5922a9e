"""Daemons must be kept out by file modes, or no disk could be killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kraftjbod.local.privileges import Privileges, chmod_bites, choose_privileges

needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root ignores file modes")


@needs_setpriv
def test_chmod_keeps_chosen_daemons_out(tmp_path: Path) -> None:
    assert chmod_bites(choose_privileges(tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_a_user_who_may_enter_is_preferred_and_gets_the_directories(tmp_path: Path) -> None:
    chosen = choose_privileges(tmp_path)
    chosen.give(tmp_path)
    owner = (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    assert owner == (chosen.owner or (0, 0))


@needs_root
def test_root_with_all_its_rights_is_not_kept_out(tmp_path: Path) -> None:
    assert not chmod_bites(Privileges(description="as root"), tmp_path)


def test_whoever_is_not_root_stays_who_they_are(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        assert choose_privileges(tmp_path).command_prefix == ()
    else:
        assert choose_privileges(tmp_path).command_prefix[0] == "setpriv"
