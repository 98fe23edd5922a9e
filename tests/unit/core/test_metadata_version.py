"""Levels of ``metadata.version``."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError, StartupError
from kraftjbod.core.metadata_version import (
    DEFAULT_METADATA_VERSION,
    LATEST_METADATA_VERSION,
    MIN_METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataVersion,
)


@pytest.mark.parametrize(
    ("release", "level", "has_directories", "has_cordoning", "has_controllers"),
    [
        ("3.6-IV2", 14, False, False, False),
        ("3.7-IV2", 17, True, False, False),
        ("4.3-IV0", 30, True, True, False),
        ("4.4-IV2", 33, True, True, True),
        ("4.4-IV2-J1", 1001, True, True, True),
    ],
)
def test_metadata_version_has_release_level_and_capabilities(
    release: str, level: int, has_directories: bool, has_cordoning: bool, has_controllers: bool
) -> None:
    version = MetadataVersion.of_release(release)
    assert version is MetadataVersion.of_level(level)
    assert (version.value, version.release) == (level, release)
    assert (version.has_directories, version.has_cordoning) == (has_directories, has_cordoning)
    assert version.has_controllers == has_controllers


def test_unknown_metadata_version_is_refused_with_supported_ones() -> None:
    with pytest.raises(StartupError, match=r"Unknown metadata.version 15. Supported: 3.6-IV2"):
        MetadataVersion.of_level(15)
    with pytest.raises(StartupError, match=r"Unknown release version '3.7'.*4.3-IV0 \(30\)"):
        MetadataVersion.of_release("3.7")


def test_default_metadata_version_is_within_supported_range() -> None:
    assert MIN_METADATA_VERSION < DEFAULT_METADATA_VERSION <= LATEST_METADATA_VERSION
    assert SUPPORTED_FEATURES == {
        "metadata.version": (14, 1001),
        "eligible.leader.replicas.version": (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
    }


def test_access_control_needs_the_newest_metadata_version() -> None:
    """Release 0.1.0 knows 4.4-IV2 without records of access control lists and credentials."""
    needed = MetadataVersion.IV_4_4_IV2_J1
    assert [version for version in MetadataVersion if version.has_access_control] == [needed]
    needed.require_for(needed, "Lists")
    with pytest.raises(OperatingError, match=r"upgrade --metadata 4\.4-IV2-J1 when") as refused:
        MetadataVersion.IV_4_4_IV2.require_for(needed, "Lists")
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
