"""WIRE. ``ClusterSecurity``: certificates and users of a local cluster's listener for clients.

* Brokers have a second listener, ``CLIENTS``, with the requested protocol. The first listener stays
  PLAINTEXT on loopback, for the brokers and for ``kraftjbod-local``.
* All brokers share one certificate, because they share one host.
* The users are ``admin``, a super user, and ``client``. Their principals are ``User:admin`` and
  ``User:client`` with each protocol: by client certificates with SSL, by SCRAM otherwise.
* ``security/admin.properties`` and ``security/client.properties`` in the run directory are settings
  of Kafka's clients. The passwords are random.

The authority's key is not stored, so that no further certificate can be issued.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, get_args

from kraftjbod.cli.clients.client_settings import ClientSettings
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.jaas import SCRAM_MODULE
from kraftjbod.core.properties import format_properties, parse_properties
from kraftjbod.core.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, ScramUser
from kraftjbod.core.security_keys import SASL_PROTOCOLS, TLS_PROTOCOLS
from kraftjbod.local.certificate_authority import CertificateAuthority
from kraftjbod.local.ports import HOST
from kraftjbod.local.privileges import Privileges

Security = Literal["ssl", "sasl_ssl", "sasl_plaintext"]
SECURITIES: Final[tuple[str, ...]] = get_args(Security)
#: Name of the listener for clients.
CLIENT_LISTENER: Final = "CLIENTS"
ADMIN: Final = "admin"
CLIENT: Final = "client"
_USERS: Final = (ADMIN, CLIENT)
_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
_PASSWORD_BYTES: Final = 18


@dataclass(frozen=True, slots=True)
class ClusterSecurity:
    """Certificates, users and client settings of a local cluster with the protocol ``security``.

    Its files are in ``directory``.
    """

    security: Security
    directory: Path

    @classmethod
    def parse(cls, security: str, run_dir: Path) -> Self:
        """Return the security of the cluster in ``run_dir``, without writing files.

        :raises ConfigError: ``security`` is not in :data:`Security`.
        """
        for known in get_args(Security):
            if security == known:
                return cls(known, run_dir / "security")
        raise ConfigError(f"security={security!r}: one of {', '.join(SECURITIES)}")

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol, such as ``SASL_SSL``."""
        return self.security.upper()

    def properties_path(self, user: str = CLIENT) -> Path:
        """Return the path of the settings of ``user``, ``admin`` or ``client``."""
        return self.directory / f"{user}.properties"

    def settings_of(self, user: str = CLIENT) -> ClientSettings:
        """Read the settings of ``user``.

        :raises StartupError: the file cannot be read.
        :raises ConfigError: the file has a wrong value.
        """
        path = self.properties_path(user)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as e:
            raise StartupError(f"cannot read {path}: {e.strerror or e}") from e
        return ClientSettings.from_values(parse_properties(text, str(path)), str(path))

    def library_config(self, user: str) -> dict[str, str]:
        """Return the settings of ``user`` for librdkafka, which does not know Java's keystores."""
        config = {"security.protocol": self.protocol}
        if self.protocol in TLS_PROTOCOLS:
            config["ssl.ca.location"] = str(self.directory / "ca.pem")
        login = self.settings_of(user).make_password_login(str(self.properties_path(user)))
        if login is None:
            own = str(self.directory / f"{user}.pem")
            return {**config, "ssl.certificate.location": own, "ssl.key.location": own}
        return {
            **config,
            "sasl.mechanism": _MECHANISM.mechanism_name,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }

    def broker_values(self, port: int, client_port: int) -> dict[str, str]:
        """Return the configuration of a broker with both listeners.

        :param port: port of the PLAINTEXT listener.
        :param client_port: port of the listener for clients.
        """
        values = {
            "listeners": f"PLAINTEXT://{HOST}:{port},{CLIENT_LISTENER}://{HOST}:{client_port}",
            "listener.security.protocol.map": (
                f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,{CLIENT_LISTENER}:{self.protocol}"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        own: dict[str, str] = {}
        if self.protocol in TLS_PROTOCOLS:
            own |= self._stores("broker")
        if self.protocol in SASL_PROTOCOLS:
            own["sasl.enabled.mechanisms"] = _MECHANISM.mechanism_name
        else:
            own["ssl.client.auth"] = "required"
            own["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]*).*$/$1/,DEFAULT"
        prefix = f"listener.name.{CLIENT_LISTENER.lower()}."
        return {**values, **{prefix + key: value for key, value in own.items()}}

    def write_files(self, privileges: Privileges) -> None:
        """Write certificates, keys and the settings of both users.

        :param privileges: user of the brokers; must be able to read their private key.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.protocol in TLS_PROTOCOLS:
            authority = CertificateAuthority.create("local kraftjbod cluster")
            self._write("ca.pem", authority.certificate_pem, mode=0o644)
            names = ("broker",) if self.protocol in SASL_PROTOCOLS else ("broker", *_USERS)
            for name in names:
                self._write(f"{name}.pem", authority.issue(name, ("localhost", HOST)))
            privileges.give(self.directory / "broker.pem")
        for user in _USERS:
            values = format_properties(self._client_values(user), f"the user {user}")
            self._write(f"{user}.properties", values.encode())

    def scram_users(self) -> tuple[ScramUser, ...]:
        """Return the users that the metadata of a new cluster has; none without SASL.

        The result is the same for each controller, and again after an interrupted start.
        """
        if self.protocol not in SASL_PROTOCOLS:
            return ()
        return tuple(self._scram_user(user) for user in _USERS)

    def _scram_user(self, user: str) -> ScramUser:
        login = self.settings_of(user).make_password_login(str(self.properties_path(user)))
        assert login is not None, "the file has the protocol of the cluster"
        # The password is random, so a salt derived from it hides it as well as a random salt.
        salt = _MECHANISM.hmac(login.password.encode(), b"salt of a local cluster")
        salted = _MECHANISM.salted_password(login.password, salt, MIN_ITERATIONS)
        credential = ScramCredential.from_salted_password(
            _MECHANISM, salted, salt=salt, iterations=MIN_ITERATIONS
        )
        return ScramUser(user, _MECHANISM, credential)

    def _client_values(self, user: str) -> Mapping[str, str]:
        values = {"security.protocol": self.protocol}
        if self.protocol in TLS_PROTOCOLS:
            values |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.directory / "ca.pem"),
            }
        if self.protocol in SASL_PROTOCOLS:
            password = secrets.token_urlsafe(_PASSWORD_BYTES)
            values["sasl.mechanism"] = _MECHANISM.mechanism_name
            values["sasl.jaas.config"] = (
                f'{SCRAM_MODULE} required username="{user}" password="{password}";'
            )
        else:
            values |= {key: value for key, value in self._stores(user).items() if "keystore" in key}
        return values

    def _stores(self, name: str) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / f"{name}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "ca.pem"),
        }

    def _write(self, name: str, content: bytes, mode: int = 0o600) -> None:
        path = self.directory / name
        path.touch(mode=mode)
        path.chmod(mode)
        path.write_bytes(content)
