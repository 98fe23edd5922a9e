"""Topic configurations."""

from __future__ import annotations

import pytest

from kraftjbod.controller.configuration_control import ConfigurationControlManager
from kraftjbod.core.config import TopicConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.metadata.state import MetadataDelta, MetadataState

UNCLEAN = "unclean.leader.election.enable"


def _manager(state: MetadataState, *, unclean: bool = False) -> ConfigurationControlManager:
    defaults = TopicConfig(unclean_leader_election_enable=unclean)
    return ConfigurationControlManager(state=state, defaults=defaults)


def test_only_given_values_are_recorded() -> None:
    records = _manager(MetadataState()).new_topic("t", {"retention.ms": "5", "flush.ms": None})
    assert [(r.resource_name, r.name, r.value) for r in records] == [("t", "retention.ms", "5")]


@pytest.mark.parametrize("configs", [{"nope": "1"}, {"retention.ms": "x"}])
def test_unknown_and_wrong_values_are_refused(configs: dict[str, str]) -> None:
    with pytest.raises(OperatingError, match=next(iter(configs))) as refused:
        _manager(MetadataState()).new_topic("t", configs)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_a_topic_s_own_value_overrides_the_default() -> None:
    state = MetadataState()
    records = _manager(state).new_topic("t", {UNCLEAN: "true"})
    state.replay(records, offset=0, epoch=0, delta=MetadataDelta())
    assert _manager(state).may_elect_unclean("t")
    assert not _manager(state).may_elect_unclean("other")
    assert _manager(state, unclean=True).may_elect_unclean("other")
