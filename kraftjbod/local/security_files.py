"""WIRE. ``write_security_files``: the keys, certificates and users of a cluster with TLS and SASL.

Below the directory:

* ``authority/``: the certificate of the authority, ``ca.pem``, and its key, ``ca-key.pem``.
* ``broker-1/``, ``controller-100/`` and so on: the keystore of a node, ``node.pem``, its
  truststore, ``ca.pem``, and ``node.properties``, with which health checks connect. Controllers
  have ``users.properties``, with the values of ``kraftjbod-storage format --add-scram`` by user.
* ``users/``: settings of Kafka's clients for each user. They contain the truststore, so that they
  can be copied to other hosts.

Existing files stay as they are. So another call adds the files of further nodes.

The users log in by SCRAM-SHA-512, with random passwords. Their SCRAM values follow from the
passwords, so that all controllers have the same values.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.client_settings import ClientSettings
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.jaas import SCRAM_MODULE
from kraftjbod.core.properties import format_properties, parse_properties
from kraftjbod.core.scram import MIN_ITERATIONS, ScramMechanism
from kraftjbod.local.certificate_authority import CertificateAuthority

_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
_PASSWORD_BYTES: Final = 18
#: A node's own group may read its keys, so that a daemon need not own them.
_GROUP_READABLE: Final = 0o640
_OWNER_ONLY: Final = 0o600
_PUBLIC: Final = 0o644


@dataclass(frozen=True, slots=True)
class Node:
    """A daemon with its principal's name, such as ``broker-1``, and the hosts that it is reached
    by.
    """

    name: str
    hosts: tuple[str, ...]

    @classmethod
    def parse(cls, role: str, text: str) -> Node:
        """Parse ``ID=HOST,HOST``.

        :param role: ``broker`` or ``controller``.
        :raises ConfigError: the text has another form.
        """
        node_id, _, listed = text.partition("=")
        hosts = tuple(host.strip() for host in listed.split(",") if host.strip())
        if not node_id.strip().isdecimal() or not hosts:
            raise ConfigError(
                f"--{role} {text}: expected ID=HOST,HOST, such as 1=broker-1.example.com"
            )
        return cls(f"{role}-{int(node_id)}", hosts)


def write_security_files(
    directory: Path, *, nodes: Iterable[Node], users: Iterable[str], group: int | None = None
) -> list[Path]:
    """Write the missing files of an authority, of ``nodes`` and of ``users``.

    :param group: id of the group that may read the files of nodes; None for the caller's.
    :returns: the written files.
    :raises StartupError: the key of an existing authority is missing or unusable.
    :raises OSError: a file cannot be written.
    """
    files = _Files(directory, group)
    authority = files.authority()
    users_text = files.users(tuple(users), authority.certificate_pem.decode())
    for node in nodes:
        folder = directory / node.name
        files.make(folder, group_may_read=True)
        files.write(folder / "ca.pem", authority.certificate_pem, _PUBLIC)
        files.write(folder / "node.pem", authority.issue(node.name, node.hosts), _GROUP_READABLE)
        files.write(folder / "node.properties", _node_settings(folder).encode(), _PUBLIC)
        if node.name.startswith("controller"):
            files.write(folder / "users.properties", users_text.encode(), _GROUP_READABLE)
    return files.written


class _Files:
    """Writes files that are missing, and remembers them in ``written``."""

    def __init__(self, directory: Path, group: int | None) -> None:
        self._directory = directory
        self._group = group
        self.written: list[Path] = []
        self.make(directory, group_may_read=True)

    def make(self, folder: Path, *, group_may_read: bool) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o750 if group_may_read else 0o700)
            if group_may_read and self._group is not None:
                os.chown(folder, -1, self._group)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        if path.exists():
            return
        # A call that is killed between two lines leaves no file that another call would keep.
        unfinished = path.with_name(f"{path.name}.new")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if mode == _GROUP_READABLE and self._group is not None:
            os.chown(unfinished, -1, self._group)
        unfinished.chmod(mode)
        unfinished.rename(path)
        self.written.append(path)

    def authority(self) -> CertificateAuthority:
        folder = self._directory / "authority"
        self.make(folder, group_may_read=False)
        certificate_path, key_path = folder / "ca.pem", folder / "ca-key.pem"
        if not certificate_path.exists():
            # Without its certificate the key of an interrupted call has signed nothing.
            key_path.unlink(missing_ok=True)
            made = CertificateAuthority.create("kraftjbod cluster")
            self.write(key_path, made.key_pem, _OWNER_ONLY)
            self.write(certificate_path, made.certificate_pem, _PUBLIC)
        try:
            key_pem = key_path.read_bytes()
        except OSError as e:
            raise StartupError(
                f"cannot read {key_path}, the key of the authority: {e.strerror}. Put it back, or "
                f"remove {self._directory} for new certificates of all nodes"
            ) from e
        return CertificateAuthority.load(key_pem, certificate_path.read_bytes(), str(key_path))

    def users(self, names: tuple[str, ...], ca_pem: str) -> str:
        """Write the settings of the users. Return ``users.properties`` for controllers."""
        folder = self._directory / "users"
        self.make(folder, group_may_read=False)
        values = {}
        for name in names:
            path = folder / f"{name}.properties"
            if not path.exists():
                settings = _user_settings(name, secrets.token_urlsafe(_PASSWORD_BYTES), ca_pem)
                text = format_properties(settings, f"the user {name}")
                self.write(path, text.encode(), _OWNER_ONLY)
            values[name] = _scram_value(name, path)
        return format_properties(values, "values of kraftjbod-storage format --add-scram")


def _user_settings(name: str, password: str, ca_pem: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca_pem,
        "sasl.mechanism": _MECHANISM.mechanism_name,
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="{name}" password="{password}";',
    }


def _scram_value(name: str, path: Path) -> str:
    """Return the value of ``--add-scram`` for the user whose settings are at ``path``."""
    settings = ClientSettings.from_values(parse_properties(path.read_text(), str(path)), str(path))
    login = settings.make_password_login(str(path))
    if login is None:
        raise StartupError(f"{path}: expected the settings of a user with SASL")
    # The password is random, so a salt derived from it hides it as well as a random salt.
    salt = _MECHANISM.hmac(login.password.encode(), b"salt of a cluster's first user")
    salted = _MECHANISM.salted_password(login.password, salt, MIN_ITERATIONS)
    return (
        f"{_MECHANISM.mechanism_name}=[name={name},iterations={MIN_ITERATIONS},"
        f"salt={_base64(salt)},saltedpassword={_base64(salted)}]"
    )


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _node_settings(folder: Path) -> str:
    """Return settings with which tools connect as the node."""
    values = {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder.absolute() / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder.absolute() / "ca.pem"),
    }
    return format_properties(values, folder.name)
