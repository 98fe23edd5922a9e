"""``checked_cordons`` validates and normalizes cordoned directories."""

from __future__ import annotations

import pytest

from kraftjbod.broker.directories.cordon_checks import checked_cordons
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_config_messages import ConfigChange

SET, DELETE = 0, 1


def _config(**more: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "process.roles": "broker",
            "node.id": "7",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "controller.quorum.voters": "100@127.0.0.1:9093",
            "log.dirs": "d1,../d2,/mnt/d3/",
            **{key.replace("_", "."): value for key, value in more.items()},
        },
        source="test",
        base_dir="/srv/broker",
    )


def _checked(text: str | None, *, is_own: bool = True, **more: str) -> ConfigChange:
    config = _config(**more)
    change = ConfigChange(name="cordoned.log.dirs", operation=SET, value=text)
    return checked_cordons(change, config, config.data_dirs, is_own=is_own)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("*", "*"),
        ("d1", "/srv/broker/d1"),
        ("./d1/, ../d2/.", "/srv/broker/d1,/srv/d2"),
        ("/mnt//d3,//mnt/d3/", "/mnt/d3"),
    ],
)
def test_checked_cordons_normalizes_paths_like_log_dirs(text: str, value: str) -> None:
    """Kafka compares the literal text, so that relative paths never match (KAFKA-20901)."""
    assert _checked(text).value == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "d1,d9",
            "Invalid entry in cordoned.log.dirs: d9. "
            "All cordoned log dirs must be entries of log.dirs or log.dir.",
        ),
        ("*,d1", "When cordoned.log.dirs is set to *, it must not contain other values"),
    ],
)
def test_checked_cordons_rejects_invalid_entries_with_kafkas_message(text: str, why: str) -> None:
    with pytest.raises(OperatingError) as refused:
        _checked(text)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, why)


def test_checked_cordons_returns_static_value_as_base_only_for_the_broker_itself() -> None:
    assert _checked("d1", cordoned_log_dirs="../d2").base == "/srv/d2"
    assert _checked("d1", is_own=False, cordoned_log_dirs="../d2").base is None


def test_checked_cordons_accepts_deletion_unchanged() -> None:
    change = ConfigChange(name="cordoned.log.dirs", operation=DELETE)
    assert checked_cordons(change, _config(), (), is_own=True) == change
