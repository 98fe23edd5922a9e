"""``kraftjbod-features``, against a scripted broker behind a real listener."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.features_tool import (
    LEVEL_OF_RELEASE,
    FeatureCommandError,
    level_text,
    main,
    parse_levels,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.metadata_version import MetadataVersion
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker


def test_level_of_release_agrees_with_metadata_versions_and_kafkas_table() -> None:
    ours = {version.release: version.value for version in MetadataVersion}
    assert ours.items() <= LEVEL_OF_RELEASE.items()
    # Levels from Kafka's own table.
    assert (LEVEL_OF_RELEASE["3.3-IV3"], LEVEL_OF_RELEASE["4.0-IV1"]) == (7, 23)
    assert max(set(LEVEL_OF_RELEASE.values()) - set(ours.values())) == 32


def test_level_text_names_metadata_versions_and_numbers_other_features() -> None:
    assert level_text("metadata.version", 17) == "3.7-IV2"
    assert level_text("metadata.version", 99) == "UNKNOWN 99"
    assert level_text("kraft.version", 1) == "1"


@pytest.mark.parametrize(
    ("metadata", "pairs", "levels"),
    [
        ("3.7-IV2", (), {"metadata.version": 17}),
        (None, ("metadata.version=30", " f = 2 "), {"metadata.version": 30, "f": 2}),
        (None, (), {}),
    ],
)
def test_parse_levels_reads_metadata_release_and_pairs(
    metadata: str | None, pairs: tuple[str, ...], levels: dict[str, int]
) -> None:
    assert parse_levels(metadata, pairs) == levels


@pytest.mark.parametrize(
    ("metadata", "pairs", "why"),
    [
        ("3.7", (), r"Unsupported metadata version 3\.7\. Supported .* 3\.7-IV2,"),
        (None, ("f",), "Can't parse feature=level string f: equals sign not found"),
        (None, ("=3",), "equals sign not found"),
        (None, ("f=x",), "unable to parse x as a short"),
        (None, ("f=-1",), "unable to parse -1 as a short"),
        (None, ("f=32768",), "unable to parse 32768 as a short"),
        ("3.7-IV2", ("metadata.version=17",), "metadata.version was specified more than once"),
    ],
)
def test_parse_levels_rejects_malformed_input_with_reason(
    metadata: str | None, pairs: tuple[str, ...], why: str
) -> None:
    with pytest.raises(FeatureCommandError, match=why):
        parse_levels(metadata, pairs)


async def test_features_describe_prints_kafkas_line() -> None:
    async with mini_broker() as broker:
        reported = await invoke(main, "--bootstrap-server", broker.address, "describe")
    assert reported.stdout == (
        "Feature: metadata.version                          SupportedMinVersion: 3.3-IV3          "
        "SupportedMaxVersion: UNKNOWN 34       FinalizedVersionLevel: 3.6-IV2          Epoch: 5\n"
    )


async def _call(broker: MiniBroker, *words: str) -> tuple[int, str, str]:
    done = await invoke(main, "--bootstrap-server", broker.address, *words)
    return done.exit_code, done.stdout, done.stderr


async def test_features_upgrade_and_downgrade_print_kafkas_lines() -> None:
    async with mini_broker() as broker:
        assert await _call(broker, "upgrade", "--metadata", "3.7-IV2", "--dry-run") == (
            0,
            "metadata.version can be upgraded to 17.\n",
            "",
        )
        assert broker.features == {"metadata.version": 14}
        _, reported, _ = await _call(broker, "describe", "--json")
        (feature,) = json.loads(reported)["features"]
        assert feature["finalized"] == {"level": 14, "name": "3.6-IV2"}
        assert await _call(broker, "upgrade", "--feature", "metadata.version=17") == (
            0,
            "metadata.version was upgraded to 17.\n",
            "",
        )
        assert broker.features == {"metadata.version": 17}
        assert await _call(broker, "downgrade", "--metadata", "3.6-IV2", "--unsafe") == (
            0,
            "metadata.version was downgraded to 14.\n",
            "",
        )


async def test_features_refusal_reports_failed_feature_and_reason() -> None:
    async with mini_broker() as broker:
        broker.fail_next["UpdateFeatures"] = [ErrorCode.INVALID_UPDATE_VERSION] * 2
        code, out, err = await _call(broker, "upgrade", "--metadata", "4.3-IV0")
        assert (code, out) == (1, "Could not upgrade metadata.version to 30. too high\n")
        assert err.endswith("1 out of 1 operation(s) failed.\n")
        words = ("downgrade", "--metadata", "3.6-IV2", "--dry-run")
        _, out, _ = await _call(broker, *words)
        assert out == "Can not downgrade metadata.version to 14. too high\n"
        broker.fail_next["UpdateFeatures"] = [ErrorCode.INVALID_UPDATE_VERSION]
        code, out, err = await _call(broker, *words, "--json")
        assert json.loads(out) == {
            "version": 1,
            "order": "downgrade",
            "dryRun": True,
            "features": [{"feature": "metadata.version", "level": 14, "name": "3.6-IV2"}],
            "reason": "too high",
            "error": "1 out of 1 operation(s) failed.",
        }
        assert (code, err) == (1, "error: 1 out of 1 operation(s) failed.\n")


async def test_features_downgrade_without_features_is_an_error() -> None:
    async with mini_broker() as broker:
        code, _, err = await _call(broker, "downgrade", "--unsafe")
        assert code == 1
        assert "You must specify at least one feature to downgrade" in err
