"""WIRE. ``kraftjbod-storage``: formats and describes log directories, and dumps segments.

Flags, output lines and exit codes are those of Kafka's ``kafka-storage.sh`` (KIP-858, "Storage
format command"), with one difference. ``--ignore-formatted`` does not format an empty path on which
this node had a directory, because its disk is probably not mounted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from kraftjbod.cli.earlier_cluster import find_earlier_cluster
from kraftjbod.cli.initial_users import initial_users
from kraftjbod.cli.quorum.initial_voters import QuorumFlags
from kraftjbod.cli.terminal.command import (
    Answer,
    answering,
    parse_pairs,
    read_file,
    read_properties,
    replace_references,
    tool_group,
)
from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import ConfigType, config_types, list_items
from kraftjbod.core.errors import (
    InconsistentStorageError,
    KraftJbodError,
    StartupError,
)
from kraftjbod.core.ids import DirectoryId, Uuid
from kraftjbod.core.kafka_keys import ALIASES, ignored_keys
from kraftjbod.core.listener_config import key_without_listener
from kraftjbod.core.metadata_version import (
    DEFAULT_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataVersion,
)
from kraftjbod.core.node_config import Endpoint, StorageSettings
from kraftjbod.core.node_principals import NODE_MECHANISM_KEY, NODE_PRINCIPALS_KEY
from kraftjbod.core.properties import parse_properties
from kraftjbod.core.scram import ScramUser
from kraftjbod.core.security_keys import PLAINTEXT, PROTOCOL_MAP
from kraftjbod.protocol.record_batch import HEADER_BYTES, check_crc, read_header
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR, FORK_MARK, LOCK_FILE, META_PROPERTIES
from kraftjbod.storage.identity.applied_metadata import forget_applied_metadata
from kraftjbod.storage.identity.bootstrap import write_bootstrap
from kraftjbod.storage.identity.known_dirs import KnownDirs, read_known_dirs, write_known_dirs
from kraftjbod.storage.meta_properties import (
    MetaProperties,
    MetaPropertiesEnsemble,
    read_meta_properties,
    write_meta_properties,
)
from kraftjbod.storage.vfs import OpenMode, RealVfs, write_atomically

_CONFIG_OPTION: Final = click.option(
    "--config", "-c", required=True, type=click.Path(dir_okay=False), help="Daemon configuration."
)


_NO_FLAGS: Final = QuorumFlags()


@tool_group()
def main() -> None:
    """Format log directories and read them."""


@main.command("random-uuid")
@answering
def random_uuid(answer: Answer) -> None:
    """Print a fresh uuid, for a cluster id."""
    uuid = str(Uuid.random(os.urandom))
    answer.say(uuid, uuid=uuid)


@main.command("format")
@_CONFIG_OPTION
@click.option("--cluster-id", "-t", required=True, help="Id of the cluster, see random-uuid.")
@click.option("--ignore-formatted", "-g", is_flag=True, help="Skip formatted directories.")
@click.option(
    "--replace-lost",
    is_flag=True,
    help="For a controller whose metadata is lost permanently: begin an empty log for an existing "
    "cluster. Its brokers refuse that log until each was asked to forget the lost one. "
    "For a broker whose log directories are all lost permanently: abandon them, and format the "
    "directories in their place.",
)
@click.option("--release-version", "-r", default=None, help="Metadata version to start with.")
@click.option("--feature", "-f", multiple=True, metavar="NAME=LEVEL", help="Feature level.")
@click.option(
    "--add-scram",
    "-S",
    multiple=True,
    metavar="MECHANISM=[name=NAME,password=PASSWORD]",
    help="A first user of SCRAM; the same values for all controllers of a new cluster. References "
    "such as ${file:PATH:KEY} are replaced.",
)
@click.option(
    "--standalone",
    "-s",
    is_flag=True,
    help="Format the first controller of a new cluster as the only voter.",
)
@click.option(
    "--no-initial-controllers",
    "-N",
    is_flag=True,
    help="Format a controller that is added to the voters later.",
)
@click.option(
    "--initial-controllers",
    "-I",
    metavar="ID@HOST:PORT:DIRECTORY-ID,...",
    default=None,
    help="The initial voters; the same value for all of them.",
)
@answering
def format_command(
    answer: Answer,
    config: str,
    cluster_id: str,
    ignore_formatted: bool,
    replace_lost: bool,
    release_version: str | None,
    feature: tuple[str, ...],
    add_scram: tuple[str, ...],
    standalone: bool,
    no_initial_controllers: bool,
    initial_controllers: str | None,
) -> None:
    """Give every log directory of a node its identity."""
    settings = load_settings(config)
    _report_ignored_keys(settings, config, answer)
    quorum = QuorumFlags(
        standalone=standalone,
        no_initial_controllers=no_initial_controllers,
        initial_controllers=initial_controllers,
    )
    quorum.check(settings)
    features = _features(release_version, feature)
    level = MetadataVersion.of_level(features[METADATA_VERSION])
    values = read_properties(config, [NODE_PRINCIPALS_KEY, NODE_MECHANISM_KEY])
    Formatter(
        settings,
        cluster_id.strip(),
        features,
        users=initial_users(_with_texts(add_scram), level, values, os.urandom),
        ignore_formatted=ignore_formatted,
        replace_lost=replace_lost,
        quorum=quorum,
        own_endpoint=_own_endpoint(config) if quorum.names_voters else None,
        answer=answer,
    ).format()


def _with_texts(values: tuple[str, ...]) -> list[str]:
    """Return the values of ``--add-scram`` with references such as ``${env:NAME}`` replaced.

    Other users of the host can read command lines, but not the files of references.
    """
    by_key = {f"--add-scram ({number})": value for number, value in enumerate(values, 1)}
    return list(replace_references(by_key, "the command line").values())


@main.command("info")
@_CONFIG_OPTION
@answering
def info_command(answer: Answer, config: str) -> None:
    """Report the identities of the log directories of a node, and their problems."""
    settings = load_settings(config)
    paths = sorted({*settings.data_dirs, settings.metadata_dir})
    found, problems = _inspect(paths)
    directories = [path for path in paths if Path(path).is_dir()]
    answer.say(None, logDirs=directories, problems=problems)
    answer.say(None, metadata={path: made.as_properties() for path, made in found.items()})
    if directories:
        answer.say("Found log directory:" if len(directories) == 1 else "Found log directories:")
        answer.say(_indented(directories))
    if found:
        values = next(iter(found.values())).as_properties()
        listed = ", ".join(f"{key}={value}" for key, value in values.items())
        answer.say(f"Found metadata: {{{listed}}}\n")
    if problems:
        answer.say("Found problem:" if len(problems) == 1 else "Found problems:")
        answer.say(_indented(problems))
        raise SystemExit(1)


@main.command("forget-metadata")
@_CONFIG_OPTION
@answering
def forget_metadata_command(answer: Answer, config: str) -> None:
    """Let a stopped broker accept the next metadata log that it receives.

    Use it after the controllers' metadata was lost permanently. Replicas that the new metadata
    does not contain are set aside then, and kept as strays.
    """
    settings = load_settings(config)
    if "broker" not in settings.process_roles:
        raise StartupError(
            f"{config} is a controller's: brokers remember metadata, controllers have it"
        )
    _forget_metadata(RealVfs(), settings.metadata_dir, answer)


def _forget_metadata(vfs: RealVfs, metadata_dir: str, answer: Answer) -> None:
    lock = vfs.try_lock(f"{metadata_dir}/{LOCK_FILE}")
    if lock is None:
        raise StartupError(f"The broker of {metadata_dir} is running: stop it first.")
    try:
        known = forget_applied_metadata(vfs, metadata_dir)
    except InconsistentStorageError as e:
        answer.say(f"Forgotten: {e}", forgotten={"damaged": str(e)})
        return
    finally:
        lock.close()
    if known is None:
        answer.say("This broker remembers no metadata log.", forgotten=None)
        return
    answer.say(
        f"Forgotten: metadata log {known.metadata_log_id}, followed up to offset {known.offset}. "
        f"The broker will follow the next metadata log that it receives.",
        forgotten={"metadataLogId": str(known.metadata_log_id), "offset": known.offset},
    )


@main.command("fork-metadata")
@_CONFIG_OPTION
@answering
def fork_metadata_command(answer: Answer, config: str) -> None:
    """Let the metadata log of a stopped controller continue as another log, with a new id.

    Use it for a log that was restored from a backup and lacks later entries: its new entries must
    not be mistaken for the lost ones. Brokers refuse the log until forget-metadata was run on each.
    """
    settings = load_settings(config)
    metadata_dir, vfs = settings.metadata_dir, RealVfs()
    if "controller" not in settings.process_roles:
        raise StartupError(f"{config} is a broker's: brokers have no metadata log of their own")
    if not vfs.exists(f"{metadata_dir}/{CLUSTER_METADATA_DIR}"):
        raise StartupError(f"{metadata_dir} holds no metadata log.")
    lock = vfs.try_lock(f"{metadata_dir}/{LOCK_FILE}")
    if lock is None:
        raise StartupError(f"The controller of {metadata_dir} is running: stop it first.")
    try:
        write_atomically(vfs, f"{metadata_dir}/{FORK_MARK}", b"")
    finally:
        lock.close()
    answer.say("The metadata log gets a new id when the controller starts.", forked=metadata_dir)


@main.command("dump-log")
@click.argument("segment", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@answering
def dump_log(answer: Answer, segment: tuple[str, ...]) -> None:
    """Print the batch headers of ``.log`` files, one JSON object a line."""
    for path in segment:
        for batch in _dump(path):
            answer.say(json.dumps(batch), batches=[{"file": path, **batch}])


class Formatter:
    """Formats the directories of one node. Nothing is written unless all checks pass."""

    def __init__(
        self,
        settings: StorageSettings,
        cluster_id: str,
        features: dict[str, int],
        *,
        users: Sequence[ScramUser] = (),
        ignore_formatted: bool,
        replace_lost: bool = False,
        quorum: QuorumFlags = _NO_FLAGS,
        own_endpoint: Endpoint | None = None,
        answer: Answer,
    ) -> None:
        """:param own_endpoint: the controller's endpoint; None if the flags do not name voters.
        :raises StartupError: the cluster id is empty.
        """
        if not cluster_id:
            raise StartupError("You must specify a cluster ID.")
        self._settings = settings
        self._cluster_id = cluster_id
        self._features = features
        self._users = users
        self._ignore_formatted = ignore_formatted
        self._replace_lost = replace_lost
        self._quorum = quorum
        self._own_endpoint = own_endpoint
        self._metadata_dir_id = DirectoryId.random(os.urandom)
        self._kind = "metadata"
        self._answer = answer
        self._vfs = RealVfs()

    def format(self) -> None:
        """Check the directories, and format the empty ones.

        :raises StartupError: they cannot be formatted; with the text of Kafka's tool.
        """
        metadata_dir = self._settings.metadata_dir
        ensemble = self._load(list(dict.fromkeys([metadata_dir, *self._settings.data_dirs])))
        ensemble.verify(
            node_id=self._settings.node_id, cluster_id=self._cluster_id, need_metadata_dir=True
        )
        if ensemble.loaded and not self._ignore_formatted:
            raise StartupError(
                f"Log directory {next(iter(ensemble.loaded))} is already formatted. "
                f"Use --ignore-formatted to ignore this directory and format the others."
            )
        if not ensemble.empty and not ensemble.loaded:
            raise StartupError("No available log directories to format.")
        known = self._known(ensemble)
        self._refuse_missing_disks(ensemble, known)
        if not ensemble.empty:
            self._remember(ensemble, known)
            self._answer.say("All of the log directories are already formatted.", formatted=[])
            return
        is_new_controller = (
            "controller" in self._settings.process_roles and metadata_dir in ensemble.empty
        )
        if is_new_controller:
            self._refuse_lost_controller(metadata_dir)
        voters = self._voters() if is_new_controller else None
        self._answer.say(
            "Bootstrap metadata: "
            + ", ".join(f"{name}={level}" for name, level in sorted(self._features.items())),
            features=self._features,
        )
        known = known.seen({path: self._format_dir(path) for path in ensemble.empty})
        if is_new_controller:
            encoded = None if voters is None else voters.encode()
            with _only_owner_may_read():
                write_bootstrap(self._vfs, metadata_dir, self._features, encoded, self._users)
        self._remember(ensemble, known)

    def _voters(self) -> VoterSet | None:
        """Return the first voters; None if the flags name none.

        If the flags name this controller, its metadata directory gets the id that they give.

        :raises StartupError: the flags are malformed.
        """
        node_id = self._settings.node_id
        voters = self._quorum.voters(node_id, self._own_endpoint, self._metadata_dir_id)
        for key in voters or ():
            if key.node_id == node_id and key.directory_id is not None:
                self._metadata_dir_id = key.directory_id
                self._kind = "dynamic metadata voter"
        if voters is not None and self._kind == "metadata":
            self._kind = "dynamic metadata"
        return voters

    def _remember(self, ensemble: MetaPropertiesEnsemble, known: KnownDirs) -> None:
        present = {p: m.directory_id for p, m in ensemble.loaded.items() if m.directory_id}
        write_known_dirs(self._vfs, ensemble.metadata_dir, known.seen(present))

    def _load(self, paths: list[str]) -> MetaPropertiesEnsemble:
        loaded, empty, errors = {}, [], {}
        for path in paths:
            try:
                found = read_meta_properties(self._vfs, f"{path}/{META_PROPERTIES}")
            except OSError as e:
                self._answer.say(
                    f"I/O error trying to read log directory {path}. Ignoring...", unread=[path]
                )
                errors[path] = str(e)
                continue
            if found is None:
                empty.append(path)
            else:
                loaded[path] = found
        return MetaPropertiesEnsemble(
            metadata_dir=self._settings.metadata_dir, loaded=loaded, empty=empty, errors=errors
        )

    def _known(self, ensemble: MetaPropertiesEnsemble) -> KnownDirs:
        if ensemble.metadata_dir not in ensemble.loaded:
            return KnownDirs()
        return read_known_dirs(self._vfs, ensemble.metadata_dir)

    def _refuse_missing_disks(self, ensemble: MetaPropertiesEnsemble, known: KnownDirs) -> None:
        """Check that no disk is missing, or that all are and the operator declared them lost.

        If one directory remains, the broker can start, and ``--forget`` knows which last copies are
        lost.

        :raises StartupError: a disk is missing; the message has the remedy.
        """
        are_all_lost = ensemble.loaded.keys().isdisjoint(self._settings.data_dirs)
        if are_all_lost and self._replace_lost:
            return
        instead = (
            "use --replace-lost to give all of them up"
            if are_all_lost
            else "start the broker and run kraftjbod-log-dirs --forget BROKER:{path}"
        )
        present = {found.directory_id for found in ensemble.loaded.values()}
        for path in ensemble.empty:
            if path in known.ids and known.ids[path] not in present:
                raise StartupError(
                    f"Log directory {path} held directory {known.ids[path]} and is empty now: its "
                    f"disk is not mounted or was wiped. Mount it; or, if it is lost permanently, "
                    f"{instead.format(path=path)}."
                )

    def _refuse_lost_controller(self, metadata_dir: str) -> None:
        follows = (
            self._quorum.no_initial_controllers and not self._settings.controller_quorum_voters
        )
        sign = find_earlier_cluster(metadata_dir, None if follows else self._cluster_id)
        if sign is None or self._replace_lost:
            return
        raise StartupError(
            f"{metadata_dir} has no metadata, but cluster {self._cluster_id} already existed: "
            f"{sign}. If formatted again, the controller would start with an empty metadata log, "
            f"which the cluster's brokers refuse. Put the lost directory back: "
            f"docs/metadata-backup.md says how. If it is lost permanently, use --replace-lost, and "
            f"have each broker forget it with `kraftjbod-storage forget-metadata`."
        )

    def _format_dir(self, path: str) -> DirectoryId:
        is_metadata = path == self._settings.metadata_dir
        kind = self._kind if is_metadata else "data"
        directory_id = self._metadata_dir_id if is_metadata else DirectoryId.random(os.urandom)
        release = MetadataVersion.of_level(self._features[METADATA_VERSION]).release
        self._answer.say(
            f"Formatting {kind} directory {path} with {METADATA_VERSION} {release}.",
            formatted=[{"kind": kind, "path": path, "directoryId": str(directory_id)}],
        )
        properties = MetaProperties(
            cluster_id=self._cluster_id,
            node_id=self._settings.node_id,
            directory_id=directory_id,
        )
        try:
            self._vfs.make_dirs(path)
            write_meta_properties(self._vfs, path, properties)
        except OSError as e:
            raise StartupError(
                f"Error while writing meta.properties file {path}/{META_PROPERTIES}: {e}"
            ) from e
        return directory_id


@contextmanager
def _only_owner_may_read() -> Iterator[None]:
    """Create files with mode 0600 in the body of this context."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def load_settings(path: str) -> StorageSettings:
    """Return the settings in a node's configuration file.

    Relative paths in the file are relative to the working directory.

    :raises ConfigError: the file cannot be read or is malformed, or a value is invalid.
    """
    # The user who formats may not read the secrets that other keys refer to.
    keys = {*StorageSettings.keys(), *ALIASES}
    return StorageSettings.from_properties(
        read_properties(path, keys), source=path, base_dir=os.getcwd()
    )


def _report_ignored_keys(settings: StorageSettings, path: str, answer: Answer) -> None:
    """Report keys that the node will ignore, so that typing errors are found early."""
    model = BrokerConfig if "broker" in settings.process_roles else ControllerConfig
    for ignored in ignored_keys(model, parse_properties(read_file(path), path)):
        answer.say(f"{path}: {ignored}", ignoredKeys=[ignored.key])


def _own_endpoint(path: str) -> Endpoint:
    """Return the endpoint of the controller whose configuration file is ``path``.

    :raises ConfigError: the file does not define it.
    """
    kinds = config_types(ControllerConfig)
    needed = [
        key
        for key in parse_properties(read_file(path), path)
        if kinds.get(key_without_listener(key)) is not ConfigType.PASSWORD
    ]
    values = dict(read_properties(path, needed))
    # Keys of security need the secrets that were left out, and the endpoint does not.
    values.pop(NODE_PRINCIPALS_KEY, None)
    listeners = (Endpoint.parse(text) for text in list_items(values.get("listeners", "")))
    try:
        names = {one.name for one in listeners}
    except ValueError:
        names = set()  # The configuration below reports the malformed listener.
    names |= set(list_items(values.get("controller.listener.names", "").upper()))
    values[PROTOCOL_MAP] = ",".join(f"{name}:{PLAINTEXT}" for name in sorted(names))
    config = ControllerConfig.from_properties(values, source=path, base_dir=os.getcwd())
    return config.advertised_endpoint


def _features(release: str | None, pairs: tuple[str, ...]) -> dict[str, int]:
    version = DEFAULT_METADATA_VERSION if release is None else MetadataVersion.of_release(release)
    given: dict[str, int] = {}
    for name, level in parse_pairs(pairs, "--feature").items():
        if name not in SUPPORTED_FEATURES:
            raise StartupError(f"Unsupported feature: {name}.")
        if not level.isdecimal():
            raise StartupError(f"Unsupported level {level} of feature {name}.")
        given[name] = int(level)
    if METADATA_VERSION in given:
        version = MetadataVersion.of_level(given[METADATA_VERSION])
    for name, number in given.items():
        lowest, highest = SUPPORTED_FEATURES[name]
        if not lowest <= number <= highest:
            raise StartupError(f"Unsupported level {number} of feature {name}.")
    if given.get(ELIGIBLE_LEADER_REPLICAS_VERSION) and not version.may_have_elr:
        raise StartupError(
            f"{ELIGIBLE_LEADER_REPLICAS_VERSION} 1 needs {METADATA_VERSION} "
            f"{MetadataVersion.IV_4_3_IV0.release} or newer, not {version.release}."
        )
    return version.default_features | given


def _inspect(paths: list[str]) -> tuple[dict[str, MetaProperties], list[str]]:
    """Return the identities of formatted directories by path, and problems in the words of Kafka's
    tool."""
    vfs, found, problems = RealVfs(), dict[str, MetaProperties](), list[str]()
    for path in paths:
        if not Path(path).exists():
            problems.append(f"{path} does not exist")
        elif not Path(path).is_dir():
            problems.append(f"{path} is not a directory")
        else:
            try:
                properties = read_meta_properties(vfs, f"{path}/{META_PROPERTIES}")
            except (StartupError, OSError) as e:
                problems.append(f"Error loading {path}/{META_PROPERTIES}: {e}")
                continue
            if properties is None:
                problems.append(f"{path} is not formatted.")
            else:
                found[path] = properties
    if len({properties.cluster_id for properties in found.values()}) > 1:
        problems.append("Mismatched cluster IDs between storage directories.")
    if len({properties.node_id for properties in found.values()}) > 1:
        problems.append("Mismatched node IDs between storage directories.")
    problems += _doubled_ids(found)
    return found, problems


def _doubled_ids(found: dict[str, MetaProperties]) -> list[str]:
    owner_of: dict[DirectoryId, str] = {}
    doubled = []
    for path, properties in found.items():
        if (uid := properties.directory_id) is None:
            continue
        if uid in owner_of:
            doubled.append(f"Duplicate directory ID {uid} in {owner_of[uid]} and {path}.")
        owner_of.setdefault(uid, path)
    return doubled


def _dump(path: str) -> Iterator[dict[str, object]]:
    file = RealVfs().open(path, OpenMode.READ)
    position, size = 0, file.size()
    try:
        while size - position >= HEADER_BYTES:
            header = read_header(file.read_at(position, HEADER_BYTES))
            data = file.read_at(position, header.size_bytes)
            line: dict[str, object] = {
                "position": position,
                "size_bytes": header.size_bytes,
                "last_offset": header.last_offset,
                **header._asdict(),
            }
            if len(data) < header.size_bytes:
                break
            try:
                check_crc(data, 0, header)
                line["is_valid"] = True
            except KraftJbodError:
                line["is_valid"] = False
            yield line
            position += header.size_bytes
    finally:
        file.close()
    if position < size:
        raise StartupError(f"{path}: {size - position} bytes at {position} are no whole batch")


def _indented(lines: list[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)


if __name__ == "__main__":
    main(prog_name="kraftjbod-storage")
