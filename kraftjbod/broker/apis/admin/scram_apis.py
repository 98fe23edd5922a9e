"""LOOP. AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554).

* The controller decides about changes. This broker derives the keys from salted passwords, which
  it does not forward.
* Descriptions come from this broker's metadata, and contain no salt and no key.
* A change takes effect on each broker when the broker has replayed the controller's records.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kraftjbod.broker.apis.admin.forwarding import forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.scram import ScramCredential, ScramMechanism
from kraftjbod.protocol import rpc_scram_messages as rpc
from kraftjbod.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_TWICE: Final = "A user credential cannot be altered twice in the same request"
Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_MECHANISMS: Final = frozenset(ScramMechanism)


class ScramApis:
    def __init__(
        self, *, cache: MetadataCache, channel: ControllerChannel, timeout_ms: int
    ) -> None:
        """:param timeout_ms: time limit of a change, because Kafka's request has none."""
        self._cache = cache
        self._channel = channel
        self._timeout_ms = timeout_ms

    async def alter_user_scram_credentials(
        self, request: AlterUserScramCredentialsRequest, _context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        changes = [
            rpc.ScramChange(user=one.name, mechanism=one.mechanism, is_deletion=True)
            for one in request.deletions
        ]
        upsertions = [_upsertion(one) async for one in in_slices(list(request.upsertions))]
        changes += upsertions
        counts = Counter(change.user for change in changes)
        once = [change for change in changes if counts[change.user] == 1]
        outcomes = await forward(
            self._channel,
            once,
            ask=lambda part: rpc.AlterUserScramCredentialsRequestRpc(changes=part),
            outcomes=lambda response: response.results,
            refuse=lambda _, e: rpc.ScramOutcome(error_code=e.code, error_message=e.message),
            timeout_ms=self._timeout_ms,
        )
        results = [
            Altered(user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=_TWICE)
            for user, count in counts.items()
            if count > 1
        ]
        for change, outcome in zip(once, outcomes, strict=True):
            results.append(
                Altered(
                    user=change.user,
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                )
            )
        return AlterUserScramCredentialsResponse(results=results)

    async def describe_user_scram_credentials(
        self, request: DescribeUserScramCredentialsRequest, _context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        async for (mechanism, user), found in in_slices(
            list(self._cache.state.scram_credentials.items())
        ):
            credentials.setdefault(user, {})[mechanism] = found
        asked = Counter(one.name for one in request.users or ())
        results = [
            _described(user, count, credentials.get(user, {}))
            for user, count in (asked or Counter(dict.fromkeys(credentials, 1))).items()
        ]
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _upsertion(one: AlterUserScramCredentialsRequest.ScramCredentialUpsertion) -> rpc.ScramChange:
    change = rpc.ScramChange(user=one.name, mechanism=one.mechanism, iterations=one.iterations)
    if one.mechanism not in _MECHANISMS:
        return change
    keys = ScramCredential.from_salted_password(
        ScramMechanism(one.mechanism),
        bytes(one.salted_password),
        salt=bytes(one.salt),
        iterations=one.iterations,
    )
    return change.model_copy(
        update={"salt": keys.salt, "stored_key": keys.stored_key, "server_key": keys.server_key}
    )


def _described(
    user: str, count: int, found: dict[ScramMechanism, ScramCredential]
) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    if count > 1:
        return Described(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=(
                f"Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{user}"
            ),
            credential_infos=[],
        )
    if not found:
        return Described(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
            credential_infos=[],
        )
    return Described(
        user=user,
        error_message=None,
        credential_infos=[
            DescribeUserScramCredentialsResponse.CredentialInfo(
                mechanism=mechanism, iterations=credential.iterations
            )
            for mechanism, credential in sorted(found.items())
        ],
    )
