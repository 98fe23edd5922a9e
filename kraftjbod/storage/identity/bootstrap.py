"""DISK. ``bootstrap.json``: the initial content of a cluster's metadata log.

``kraftjbod-storage format`` writes the file into the metadata directory of a controller. The first
active controller turns it into records. It holds feature levels, the initial voters if no
configuration names them, and the first users of SCRAM with their salted keys.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kraftjbod.core.errors import InconsistentStorageError
from kraftjbod.core.metadata_version import (
    DEFAULT_METADATA_VERSION,
    METADATA_VERSION,
    MetadataVersion,
)
from kraftjbod.core.scram import MECHANISM_NAMES, ScramCredential, ScramUser
from kraftjbod.storage.dir_names import BOOTSTRAP_FILE, FORK_MARK
from kraftjbod.storage.vfs import Vfs, write_atomically


def write_bootstrap(
    vfs: Vfs,
    metadata_dir: str,
    features: Mapping[str, int],
    voters: bytes | None = None,
    users: Iterable[ScramUser] = (),
) -> None:
    """Write ``bootstrap.json`` atomically and durably.

    :param features: the level of each feature.
    :param voters: an encoded ``VoterSet``; None if the configuration names the voters.
    """
    document: dict[str, object] = {"version": 1, "features": dict(sorted(features.items()))}
    if voters is not None:
        document["voters"] = json.loads(voters)
    if scram := [_as_document(user) for user in users]:
        document["scram"] = scram
    text = json.dumps(document, indent=2)
    write_atomically(vfs, f"{metadata_dir}/{BOOTSTRAP_FILE}", f"{text}\n".encode())


def read_bootstrap(vfs: Vfs, metadata_dir: str) -> dict[str, int]:
    """Return the level of each feature; the levels of the default release if the file does not
    exist.

    :raises StartupError: the file is damaged or has an unsupported level.
    """
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    data = vfs.read_if_exists(path)
    if data is None:
        return DEFAULT_METADATA_VERSION.default_features
    try:
        features = json.loads(bytes(data))["features"]
        levels = {str(name): int(level) for name, level in features.items()}
        metadata_version = levels[METADATA_VERSION]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InconsistentStorageError(
            f"{path} is damaged ({e}); restore it from a backup (docs/metadata-backup.md)"
        ) from e
    MetadataVersion.of_level(metadata_version)
    return levels


def read_bootstrap_voters(vfs: Vfs, metadata_dir: str) -> bytes | None:
    """Return the initial voters as an encoded ``VoterSet``; None if the file does not exist or has
    none.

    :raises StartupError: the file is damaged.
    """
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    data = vfs.read_if_exists(path)
    try:
        voters = None if data is None else json.loads(bytes(data)).get("voters")
    except (ValueError, AttributeError) as e:
        raise InconsistentStorageError(
            f"{path} is damaged ({e}); restore it from a backup (docs/metadata-backup.md)"
        ) from e
    return None if voters is None else json.dumps(voters).encode()


def read_bootstrap_users(vfs: Vfs, metadata_dir: str) -> tuple[ScramUser, ...]:
    """Return the first users of SCRAM; none if the file does not exist or has none.

    :raises StartupError: the file is damaged.
    """
    path = f"{metadata_dir}/{BOOTSTRAP_FILE}"
    data = vfs.read_if_exists(path)
    try:
        documents = [] if data is None else json.loads(bytes(data)).get("scram", [])
        return tuple(map(_as_user, documents))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        # The content may be that of a key.
        raise InconsistentStorageError(
            f"{path} is damaged; restore it from a backup (docs/metadata-backup.md)"
        ) from e


def _as_document(user: ScramUser) -> dict[str, object]:
    of = user.credential
    keys = {"salt": of.salt, "storedKey": of.stored_key, "serverKey": of.server_key}
    return {
        "name": user.name,
        "mechanism": user.mechanism.mechanism_name,
        "iterations": of.iterations,
        **{name: base64.b64encode(key).decode() for name, key in keys.items()},
    }


def _as_user(document: Mapping[str, Any]) -> ScramUser:
    def key(name: str) -> bytes:
        return base64.b64decode(document[name], validate=True)

    credential = ScramCredential(
        salt=key("salt"),
        stored_key=key("storedKey"),
        server_key=key("serverKey"),
        iterations=int(document["iterations"]),
    )
    return ScramUser(str(document["name"]), MECHANISM_NAMES[document["mechanism"]], credential)


def forget_fork(vfs: Vfs, metadata_dir: str) -> None:
    """Remove the file that marks a fork of the metadata, durably. Called once the metadata log has
    its new id. No error if the file does not exist.
    """
    vfs.unlink_if_exists(f"{metadata_dir}/{FORK_MARK}")
    vfs.sync_dir(metadata_dir)
