"""PURE. ``ScramControlManager``: add, replace and delete SCRAM credentials.

The checks, error codes and texts are those of Kafka's ``ScramControlManager``. In addition no user
may be called ``*``, which stands for all users in ACLs, or have the principal of a node.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.core.node_principals import NODE_PRINCIPALS_KEY, NodePrincipals
from kraftjbod.core.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, ScramUser
from kraftjbod.metadata.records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_scram_messages import (
    AlterUserScramCredentialsRequestRpc,
    AlterUserScramCredentialsResponseRpc,
    ScramChange,
    ScramOutcome,
)

#: Credentials of the cluster, which each node keeps in memory.
MAX_CREDENTIALS: Final = 100_000
MAX_USER_CHARS: Final = 1_000
MAX_SALT_BYTES: Final = 1024
_LEAST_LEVEL: Final = MetadataVersion.IV_4_4_IV2_J1
_MECHANISMS: Final = frozenset(ScramMechanism)

ScramRecord = UserScramCredentialRecord | RemoveUserScramCredentialRecord


class ScramControlManager:
    """Decides changes of SCRAM credentials. Returns records; the replay of the records changes the
    metadata.
    """

    def __init__(
        self, state: MetadataState, node_principals: NodePrincipals, node_mechanism: str = ""
    ) -> None:
        """:param node_principals: principals of nodes, which no user may have.
        :param node_mechanism: mechanism by which brokers log in to each other. Users of it may have
            the principals of nodes.
        """
        self._state = state
        self._node_mechanism = node_mechanism
        self._node_principals = node_principals

    def alter(
        self, request: AlterUserScramCredentialsRequestRpc
    ) -> ControllerResult[AlterUserScramCredentialsResponseRpc]:
        """Return a record for each valid change. Changes are independent of each other. Invalid
        ones have an error in the response.
        """
        counts = Counter(change.user for change in request.changes)
        records: list[ScramRecord] = []
        results: list[ScramOutcome] = []
        for change in request.changes:
            try:
                if counts[change.user] > 1:
                    raise _refused(
                        "A user credential cannot be altered twice in the same request",
                        ErrorCode.DUPLICATE_RESOURCE,
                    )
                records.append(self._record(change, len(records)))
            except OperatingError as e:
                results.append(ScramOutcome(error_code=e.code, error_message=e.message))
            else:
                results.append(ScramOutcome())
        response = AlterUserScramCredentialsResponseRpc(results=tuple(results))
        return ControllerResult(records=tuple(records), response=response, is_atomic=False)

    def _record(self, change: ScramChange, new: int) -> ScramRecord:
        self._state.metadata_version.require_for(_LEAST_LEVEL, "SCRAM credentials")
        if not change.user:
            raise _refused("Username must not be empty", ErrorCode.UNACCEPTABLE_CREDENTIAL)
        if change.mechanism not in _MECHANISMS:
            raise _refused("Unknown SCRAM mechanism", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        mechanism = ScramMechanism(change.mechanism)
        is_known = (mechanism, change.user) in self._state.scram_credentials
        if change.is_deletion:
            if not is_known:
                raise _refused(
                    "Attempt to delete a user credential that does not exist",
                    ErrorCode.RESOURCE_NOT_FOUND,
                )
            return RemoveUserScramCredentialRecord(name=change.user, mechanism=mechanism)
        if change.user == "*":
            raise _refused(
                "A user cannot be called *, which stands for all users in ACLs",
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            )
        is_node = self._node_principals.node_of(f"User:{change.user}") is not None
        if is_node and mechanism.mechanism_name != self._node_mechanism:
            raise _refused(
                f"User:{change.user} is the principal of a broker or controller by "
                f"{NODE_PRINCIPALS_KEY}: choose another user name, or set "
                f"sasl.mechanism.inter.broker.protocol={mechanism.mechanism_name} in the files of "
                "the controllers if brokers log in by it",
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            )
        if len(change.user) > MAX_USER_CHARS or len(change.salt) > MAX_SALT_BYTES:
            raise _refused(
                f"A user name has at most {MAX_USER_CHARS} characters, and a salt "
                f"{MAX_SALT_BYTES} bytes",
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            )
        if change.iterations < MIN_ITERATIONS:
            raise _refused("Too few iterations", ErrorCode.UNACCEPTABLE_CREDENTIAL)
        if change.iterations > MAX_ITERATIONS:
            raise _refused("Too many iterations", ErrorCode.UNACCEPTABLE_CREDENTIAL)
        if not is_known and len(self._state.scram_credentials) + new >= MAX_CREDENTIALS:
            raise _refused(
                f"The cluster has {MAX_CREDENTIALS} SCRAM credentials already: delete some.",
                ErrorCode.POLICY_VIOLATION,
            )
        return UserScramCredentialRecord(
            name=change.user,
            mechanism=mechanism,
            salt=change.salt,
            stored_key=change.stored_key,
            server_key=change.server_key,
            iterations=change.iterations,
        )


def _refused(message: str, code: ErrorCode) -> OperatingError:
    return OperatingError(message, code=code)


def first_credential(user: ScramUser) -> UserScramCredentialRecord:
    """Return the record of a SCRAM user that is created together with the cluster."""
    of = user.credential
    return UserScramCredentialRecord(
        name=user.name,
        mechanism=user.mechanism,
        salt=of.salt,
        stored_key=of.stored_key,
        server_key=of.server_key,
        iterations=of.iterations,
    )
