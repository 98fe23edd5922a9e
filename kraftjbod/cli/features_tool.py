"""WIRE. ``kraftjbod-features``: shows, raises and lowers the feature levels of the cluster.

Flags, output lines and exit codes are those of Kafka's ``kafka-features.sh``. The tool works with
Kafka's brokers too, so it knows releases of Kafka that kraftjbod does not support.
``--bootstrap-controller`` sends requests to kraftjbod's controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import (
    ClusterFeatures,
    UpgradeType,
    describe_features,
    update_features,
)
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    ControllerAddress,
    answering,
    either_options,
    tool_group,
)
from kraftjbod.core.errors import ConnectionLostError, KraftJbodError, OperatingError
from kraftjbod.core.metadata_version import METADATA_VERSION, MetadataVersion

_FIRST_LEVEL: Final = 7
#: Kafka's releases from which an upgrade is possible: the first and the last "IV" of each.
_IVS: Final[Mapping[str, tuple[int, int]]] = {
    "3.3": (3, 3),
    "3.4": (0, 0),
    "3.5": (0, 2),
    "3.6": (0, 2),
    "3.7": (0, 4),
    "3.8": (0, 0),
    "3.9": (0, 0),
    "4.0": (0, 3),
    "4.1": (0, 1),
    "4.2": (0, 1),
    "4.3": (0, 0),
    "4.4": (0, 2),
}
_RELEASES: Final = [
    f"{release}-IV{iv}" for release, (first, last) in _IVS.items() for iv in range(first, last + 1)
]
LEVEL_OF_RELEASE: Final[Mapping[str, int]] = {
    **{release: level for level, release in enumerate(_RELEASES, _FIRST_LEVEL)},
    **{version.release: version.value for version in MetadataVersion},
}
_RELEASE_OF_LEVEL: Final = {level: release for release, level in LEVEL_OF_RELEASE.items()}
_MAX_LEVEL: Final = 2**15 - 1
_NAME_WIDTH: Final = 40
_LEVEL_WIDTH: Final = 15


Where = ClusterAddress | ControllerAddress


class FeatureCommandError(KraftJbodError):
    """The command is malformed, or the cluster refuses it."""


@tool_group()
@either_options
@click.pass_context
def main(context: click.Context, /, where: Where) -> None:
    """Describe and change the feature levels of a cluster."""
    context.obj = where


@main.command("describe")
@answering
@click.pass_obj
def describe_command(where: Where, answer: Answer) -> None:
    """Report the supported range and the present level of each feature."""
    asyncio.run(_describe(where, answer))


_METADATA_OPTION: Final = click.option(
    "--metadata", metavar="RELEASE", help="Level of metadata.version by name, such as 3.7-IV2."
)
_FEATURE_OPTION: Final = click.option(
    "--feature", "pairs", multiple=True, metavar="NAME=LEVEL", help="May be repeated."
)
_DRY_RUN_OPTION: Final = click.option(
    "--dry-run",
    is_flag=True,
    help="Check whether the change is possible, without changing anything.",
)


@main.command("upgrade")
@_METADATA_OPTION
@_FEATURE_OPTION
@_DRY_RUN_OPTION
@answering
@click.pass_obj
def upgrade_command(
    where: Where,
    answer: Answer,
    metadata: str | None,
    pairs: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Raise levels. A later downgrade may lose metadata or be impossible."""
    levels, kind = _wanted("upgrade", metadata, pairs), UpgradeType.UPGRADE
    asyncio.run(_update(where, answer, "upgrade", levels, kind, dry_run=dry_run))


@main.command("downgrade")
@_METADATA_OPTION
@_FEATURE_OPTION
@click.option("--unsafe", is_flag=True, help="Allow a change that loses metadata permanently.")
@_DRY_RUN_OPTION
@answering
@click.pass_obj
def downgrade_command(
    where: Where,
    answer: Answer,
    metadata: str | None,
    pairs: tuple[str, ...],
    unsafe: bool,
    dry_run: bool,
) -> None:
    """Lower levels; refused with a list if something would be lost."""
    levels = _wanted("downgrade", metadata, pairs)
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    asyncio.run(_update(where, answer, "downgrade", levels, kind, dry_run=dry_run))


@main.command("disable")
@click.option("--feature", "names", multiple=True, metavar="NAME", help="May be repeated.")
@click.option("--unsafe", is_flag=True, help="Allow a change that loses metadata permanently.")
@_DRY_RUN_OPTION
@answering
@click.pass_obj
def disable_command(
    where: Where, answer: Answer, names: tuple[str, ...], unsafe: bool, dry_run: bool
) -> None:
    """Lower levels to 0."""
    if not names:
        raise FeatureCommandError("You must specify at least one feature to disable")
    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    levels = dict.fromkeys(names, 0)
    asyncio.run(_update(where, answer, "disable", levels, kind, dry_run=dry_run))


def _wanted(verb: str, metadata: str | None, pairs: tuple[str, ...]) -> dict[str, int]:
    levels = parse_levels(metadata, pairs)
    if not levels:
        raise FeatureCommandError(f"You must specify at least one feature to {verb}")
    return levels


def level_text(feature: str, level: int) -> str:
    """Return ``3.7-IV2`` for level 17 of metadata.version, ``UNKNOWN 99`` for an unknown level.

    Levels of other features are numbers.
    """
    if feature != METADATA_VERSION:
        return str(level)
    return _RELEASE_OF_LEVEL.get(level, f"UNKNOWN {level}")


def parse_levels(metadata: str | None, pairs: tuple[str, ...]) -> dict[str, int]:
    """Return the requested level by feature.

    :param metadata: value of ``--metadata``.
    :param pairs: values of ``--feature``.
    :raises FeatureCommandError: an unknown release, a pair that is not NAME=LEVEL, or a feature
        that is named twice.
    """
    levels: dict[str, int] = {}
    if metadata is not None:
        if metadata not in LEVEL_OF_RELEASE:
            raise FeatureCommandError(
                f"Unsupported metadata version {metadata}. "
                f"Supported metadata versions are {', '.join(LEVEL_OF_RELEASE)}"
            )
        levels[METADATA_VERSION] = LEVEL_OF_RELEASE[metadata]
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not name or not equals:
            raise FeatureCommandError(
                f"Can't parse feature=level string {pair}: equals sign not found."
            )
        if not text.isdecimal() or int(text) > _MAX_LEVEL:
            raise FeatureCommandError(
                f"Can't parse feature=level string {pair}: unable to parse {text} as a short."
            )
        if name in levels:
            raise FeatureCommandError(f"Feature {name} was specified more than once.")
        levels[name] = int(text)
    return levels


async def _describe(where: Where, answer: Answer) -> None:
    found = await _found(where)
    answer.say(None, epoch=found.epoch if found.epoch >= 0 else None, features=[])
    epoch = str(found.epoch) if found.epoch >= 0 else "-"
    for feature in sorted(found.features, key=lambda feature: feature.name):
        name = feature.name
        answer.say(
            f"Feature: {name:<{_NAME_WIDTH}}  "
            f"SupportedMinVersion: {level_text(name, feature.min_version):<{_LEVEL_WIDTH}}  "
            f"SupportedMaxVersion: {level_text(name, feature.max_version):<{_LEVEL_WIDTH}}  "
            f"FinalizedVersionLevel: {level_text(name, feature.finalized_level):<{_LEVEL_WIDTH}}  "
            f"Epoch: {epoch}",
            features=[
                {
                    "feature": name,
                    "supportedMin": _level(name, feature.min_version),
                    "supportedMax": _level(name, feature.max_version),
                    "finalized": _level(name, feature.finalized_level),
                }
            ],
        )


async def _found(where: Where) -> ClusterFeatures:
    if isinstance(where, ControllerAddress):
        async with where.connect() as controllers:
            from kraftjbod.cli.clients import controller_admin

            return await controller_admin.describe_features(controllers)
    async with where.connect() as client:
        return await client.retry(lambda: describe_features(client))


def _level(feature: str, level: int) -> dict[str, Any] | None:
    """Return a level as number and name; None for -1, which means that it is not reported."""
    return None if level < 0 else {"level": level, "name": level_text(feature, level)}


async def _update(
    where: Where,
    answer: Answer,
    verb: str,
    levels: Mapping[str, int],
    kind: UpgradeType,
    *,
    dry_run: bool,
) -> None:
    wanted = [{"feature": name, **(_level(name, level) or {})} for name, level in levels.items()]
    answer.say(None, order=verb, dryRun=dry_run, features=wanted)
    try:
        await _ask(where, levels, kind, dry_run=dry_run)
    except _Refused as e:
        # All updates succeed or none, so one reason applies to all.
        for name, level in sorted(levels.items()):
            attempt = "Can not" if dry_run else "Could not"
            what = name if verb == "disable" else f"{name} to {level}"
            answer.say(f"{attempt} {verb} {what}. {e}", reason=str(e))
        raise FeatureCommandError(f"{len(levels)} out of {len(levels)} operation(s) failed.") from e
    for name, level in sorted(levels.items()):
        what = f"{verb}d" if verb == "disable" else f"{verb}d to {level}"
        answer.say(f"{name} {'can be' if dry_run else 'was'} {what}.")


class _Refused(KraftJbodError):
    """The cluster refused the request."""


async def _ask(
    where: Where, levels: Mapping[str, int], kind: UpgradeType, *, dry_run: bool
) -> None:
    """Send the update.

    :raises _Refused: the cluster refused it; the message is the reason.
    """
    if isinstance(where, ControllerAddress):
        async with where.connect() as controllers:
            from kraftjbod.cli.clients import controller_admin

            with _refusals():
                await controller_admin.update_features(
                    controllers, levels, upgrade_type=kind, validate_only=dry_run
                )
        return
    async with where.connect() as client:
        with _refusals():
            await client.retry(
                lambda: update_features(client, levels, upgrade_type=kind, validate_only=dry_run)
            )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ConnectionLostError:
        raise
    except OperatingError as e:
        raise _Refused(e.message) from e


if __name__ == "__main__":
    main(prog_name="kraftjbod-features")
