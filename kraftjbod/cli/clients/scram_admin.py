"""WIRE. Requests about SCRAM credentials. Passwords do not leave the process: requests have salted
passwords."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.scram import ScramMechanism, salt_of
from kraftjbod.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

_SALT_BYTES: Final = 17


@dataclass(frozen=True, slots=True)
class NewCredential:
    """A credential to be set. Its representation shows no password."""

    mechanism: ScramMechanism
    password: str = field(repr=False)
    iterations: int


async def describe_scram_users(
    client: ClusterClient, names: Sequence[str] | None
) -> Mapping[str, Mapping[ScramMechanism, int]]:
    """Return the iteration counts by user and mechanism.

    :param names: None for all users.
    :raises OperatingError: RESOURCE_NOT_FOUND: a user of ``names`` has no credential.
    """
    kind = DescribeUserScramCredentialsRequest.UserName
    users = None if names is None else [kind(name=name) for name in names]
    answer = await client.request_from_any_broker(DescribeUserScramCredentialsRequest(users=users))
    _require(answer.error_code, "the users", answer.error_message)
    found = {}
    for result in answer.results:
        _require(result.error_code, result.user, result.error_message)
        found[result.user] = {
            ScramMechanism(one.mechanism): one.iterations for one in result.credential_infos
        }
    return found


async def alter_scram_user(
    client: ClusterClient,
    user: str,
    new: Sequence[NewCredential],
    deleted: Sequence[ScramMechanism],
) -> None:
    """Set and delete credentials of one user.

    :raises OperatingError: the change is refused; DUPLICATE_RESOURCE for several changes at once.
    """
    kinds = AlterUserScramCredentialsRequest
    upsertions = []
    for one in new:
        salt = salt_of(secrets.token_bytes(_SALT_BYTES))
        upsertions.append(
            kinds.ScramCredentialUpsertion(
                name=user,
                mechanism=one.mechanism,
                iterations=one.iterations,
                salt=salt,
                salted_password=one.mechanism.salted_password(one.password, salt, one.iterations),
            )
        )
    deletions = [kinds.ScramCredentialDeletion(name=user, mechanism=one) for one in deleted]
    request = kinds(deletions=deletions, upsertions=upsertions)
    answer = await client.request_from_any_broker(request)
    for result in answer.results:
        _require(result.error_code, f"user {user}", result.error_message)


def _require(code: int, what: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise kafka_error(code, what, message)
