"""``ControllerRegistrationRequest``: permitted values."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.protocol.rpc_controller_messages import MAX_FEATURES, ControllerRegistrationRequest

WHOLE: dict[str, Any] = {
    "controller_id": 100,
    "cluster_id": "c",
    "incarnation_id": b"i" * 16,
    "directory_id": b"d" * 16,
    "listeners": [{"name": "CONTROLLER", "host": "h", "port": 9090}],
    "features": {"metadata.version": [14, 33]},
    "software_version": "1",
}


def test_registration_ignores_fields_of_newer_controllers() -> None:
    request = ControllerRegistrationRequest.model_validate({**WHOLE, "from_the_future": 1})
    assert request.replaced_incarnation_id is None
    assert request.features == {"metadata.version": (14, MetadataVersion.IV_4_4_IV2)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"controller_id": -1},
        {"incarnation_id": b"short"},
        {"listeners": []},
        {"listeners": [{"name": "CONTROLLER", "host": "h", "port": 0}]},
        {"features": {str(number): [0, 1] for number in range(MAX_FEATURES + 1)}},
        {"software_version": "1" * 1001},
    ],
)
def test_registration_refuses_values_out_of_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ControllerRegistrationRequest.model_validate({**WHOLE, **wrong})
