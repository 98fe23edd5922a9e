"""PURE. Levels of ``metadata.version``, the feature level that the cluster has agreed on.

Names and numbers are Kafka's up to 4.4-IV2. Later levels are kraftjbod's own (ADR 111). A level
says which fields of records and requests may be used. The versions of records and requests are
defined beside their schemas.

This module does not know the level of a cluster.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

from kraftjbod.core.errors import ErrorCode, OperatingError, StartupError

METADATA_VERSION: Final = "metadata.version"
"""Name of the feature of this level."""
ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
"""Name of the feature of KIP-966: 0 without eligible leader replicas, 1 with them."""

TRANSACTION_VERSION: Final = "transaction.version"
"""Name of the feature of KIP-890: 0 as before the KIP, 1 with flexible records, 2 with an epoch
for each transaction."""
GROUP_VERSION: Final = "group.version"
"""Name of the feature of KIP-848: 0 with classic groups only, 1 with consumer groups as well."""


class MetadataVersion(IntEnum):
    """Levels of ``metadata.version`` that this software knows, in ascending order."""

    IV_3_6_IV2 = 14
    """Before KIP-858: every broker has one directory, and the metadata does not name it."""
    IV_3_7_IV2 = 17
    """Brokers register their directories, and each replica's directory is known (KIP-858)."""
    IV_4_3_IV0 = 30
    """Directories can be cordoned (KIP-1066)."""
    IV_4_4_IV2 = 33
    """Controllers are registered (KIP-919), and apply configurations at run time."""
    IV_4_4_IV2_J1 = 1001
    """The metadata has access control lists, SCRAM credentials, quotas of clients, and dynamic
    values of listeners. Kafka has these records at lower levels, access control lists from 3.2-IV0
    and SCRAM credentials from 3.5-IV2 on. But kraftjbod 0.1.0 knows 4.4-IV2 without them."""

    @property
    def release(self) -> str:
        """Name of the level for operators, such as ``"3.7-IV2"``."""
        return self.name.removeprefix("IV_").replace("_", ".", 1).replace("_", "-")

    @property
    def has_directories(self) -> bool:
        return self >= MetadataVersion.IV_3_7_IV2

    @property
    def has_cordoning(self) -> bool:
        return self >= MetadataVersion.IV_4_3_IV0

    @property
    def has_controllers(self) -> bool:
        """Whether controllers are registered and can be configured at run time (KIP-919)."""
        return self >= MetadataVersion.IV_4_4_IV2

    @property
    def has_access_control(self) -> bool:
        """Whether the metadata can have access control lists, SCRAM credentials, quotas of clients,
        and dynamic values of listeners (ADR 111)."""
        return self >= MetadataVersion.IV_4_4_IV2_J1

    def require_for(self, needed: MetadataVersion, what: str) -> None:
        """Require that this level of the cluster is at least ``needed``.

        :param what: subject of the error message, in the plural.
        :raises OperatingError: UNSUPPORTED_VERSION, with the command that raises the level.
        """
        if self < needed:
            raise OperatingError(
                f"{what} need {METADATA_VERSION} {needed.release}, and the cluster has "
                f"{self.release}: run kraftjbod-features --bootstrap-server HOST:PORT upgrade "
                f"--metadata {needed.release} when all brokers and controllers have the new "
                "software",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )

    @property
    def may_have_elr(self) -> bool:
        """Whether partition records can name eligible leader replicas (KIP-966)."""
        return self >= MetadataVersion.IV_4_3_IV0

    @property
    def default_features(self) -> dict[str, int]:
        """Levels, by feature name, with which a new cluster of this release is formatted.

        ``kraft.version`` is not included."""
        features = {METADATA_VERSION: self.value}
        if self >= MetadataVersion.IV_4_3_IV0:
            features |= {ELIGIBLE_LEADER_REPLICAS_VERSION: 1, TRANSACTION_VERSION: 2}
            features |= {GROUP_VERSION: 1}
        return features

    @classmethod
    def of_level(cls, level: int) -> Self:
        """Return the member with the number ``level``.

        :raises StartupError: unknown level; the message lists the known levels.
        """
        try:
            return cls(level)
        except ValueError:
            raise StartupError(
                f"Unknown {METADATA_VERSION} {level}. Supported: {_all_levels()}"
            ) from None

    @classmethod
    def of_release(cls, release: str) -> Self:
        """Return the member with this name of a release, such as ``"3.7-IV2"``.

        :raises StartupError: unknown release; the message lists the known releases.
        """
        for version in cls:
            if version.release == release:
                return version
        raise StartupError(f"Unknown release version '{release}'. Supported: {_all_levels()}")


def _all_levels() -> str:
    return ", ".join(f"{version.release} ({version.value})" for version in MetadataVersion)


MIN_METADATA_VERSION: Final = min(MetadataVersion)
LATEST_METADATA_VERSION: Final = max(MetadataVersion)
"""The greatest level that this software can run at."""
DEFAULT_METADATA_VERSION: Final = MetadataVersion.IV_4_4_IV2_J1
"""Level with which a new cluster is formatted."""
KRAFT_VERSION: Final = "kraft.version"
"""1 once the metadata log names its voters. It is stored in no record of the metadata."""
KRAFT_VERSIONS: Final = (0, 1)

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {
    METADATA_VERSION: (MIN_METADATA_VERSION.value, LATEST_METADATA_VERSION.value),
    ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    GROUP_VERSION: (0, 1),
}
"""Lowest and highest level by feature, as a broker registers them and reports them to clients."""
