"""WIRE. ``sasl_settings``: the SASL settings of one listener."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kraftjbod.broker.security.plain_mechanism import PlainMechanism, plain_digests
from kraftjbod.broker.security.scram_mechanism import ScramServer
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.core.oauthbearer_config import OAUTHBEARER
from kraftjbod.core.sasl_config import PLAIN, SaslConfig, plain_users
from kraftjbod.core.scram import MECHANISM_NAMES, ScramCredential, ScramMechanism
from kraftjbod.metadata.state import MetadataState
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.sasl_mechanism import MakeSaslMechanism

if TYPE_CHECKING:
    from kraftjbod.broker.security.jwt_validator import TokenKeys


def sasl_settings(
    config: SaslConfig,
    memory: MemoryBudget,
    *,
    state: Callable[[], MetadataState],
    cluster_id: str,
    random_bytes: Callable[[int], bytes],
    wall_ms: Callable[[], int],
    token_keys: TokenKeys | None = None,
    is_node: Callable[[str], bool] = lambda _: False,
) -> SaslSettings:
    """Return the settings of a listener.

    :param config: values for the listener, which were checked.
    :param memory: budget of the connections without a login, of all listeners.
    :param state: returns the present metadata, which has the SCRAM credentials.
    :param token_keys: keys that verify tokens, if OAUTHBEARER is enabled.
    :param is_node: whether a user has the principal of a node. Such users of tokens are refused.
    """
    mechanisms: dict[str, MakeSaslMechanism] = {}
    for name in config.sasl_enabled_mechanisms:
        if name == PLAIN:
            mechanisms[name] = partial(PlainMechanism, plain_digests(plain_users(config)))
            continue
        if name == OAUTHBEARER:
            assert token_keys is not None, "the keys are opened before the listeners"
            mechanisms[name] = _oauthbearer(config, token_keys, wall_ms, is_node)
            continue
        mechanism = MECHANISM_NAMES[name]
        mechanisms[name] = partial(
            ScramServer,
            mechanism,
            find=partial(_credential, state, mechanism),
            secret=lambda: cluster_secret(state(), cluster_id),
            random_bytes=random_bytes,
        )
    return SaslSettings(
        mechanisms=mechanisms,
        memory=memory,
        max_receive_bytes=config.sasl_server_max_receive_size,
        timeout_ms=config.sasl_login_timeout_ms,
        failure_delay_ms=config.connection_failed_authentication_delay_ms,
        max_reauth_ms=config.connections_max_reauth_ms,
    )


def _oauthbearer(
    config: SaslConfig,
    keys: TokenKeys,
    wall_ms: Callable[[], int],
    is_node: Callable[[str], bool],
) -> MakeSaslMechanism:
    # The package joserfc takes 0.1 s.
    from kraftjbod.broker.security.jwt_validator import ClaimRules, JwtValidator
    from kraftjbod.broker.security.oauthbearer_mechanism import OauthbearerMechanism

    rules = ClaimRules(
        audiences=frozenset(config.sasl_oauthbearer_expected_audience),
        issuer=config.sasl_oauthbearer_expected_issuer or None,
        clock_skew_s=config.sasl_oauthbearer_clock_skew_seconds,
        subject_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
    )
    validator = JwtValidator(rules, keys, wall_ms=wall_ms)
    return partial(OauthbearerMechanism, validator, is_node=is_node)


def is_node(principals: NodePrincipals | None, user: str) -> bool:
    """Return whether the principal of ``user`` is that of a broker or controller.

    :param principals: ``cluster.node.principals``; None if it is not set.
    """
    return principals is not None and principals.node_of(f"User:{user}") is not None


def _credential(
    state: Callable[[], MetadataState], mechanism: ScramMechanism, user: str
) -> ScramCredential | None:
    return state().scram_credentials.get((mechanism, user))


def cluster_secret(state: MetadataState, cluster_id: str) -> bytes:
    """Return the id of the metadata log: equal on all brokers, random, and never sent to clients.

    If the log is from before logs had ids, return the cluster id. Clients know it, so they can tell
    the made-up salts of unknown users from real salts.
    """
    log_id = state.metadata_log_id
    return cluster_id.encode() if log_id is None else bytes(log_id)
