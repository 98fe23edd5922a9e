"""Values of ``kraftjbod-configs --entity-type users``."""

from __future__ import annotations

import click
import pytest

from kraftjbod.cli.clients.scram_admin import NewCredential
from kraftjbod.cli.user_configs import parse_credentials
from kraftjbod.core.scram import ScramMechanism


def test_parse_credentials_reads_iterations_and_passwords() -> None:
    found = parse_credentials(
        {
            "SCRAM-SHA-256": "iterations=8192,password=a=b",
            "SCRAM-SHA-512": "password=x,iterations=-1",
        }
    )
    assert found == [
        NewCredential(ScramMechanism.SCRAM_SHA_256, "a=b", 8192),
        NewCredential(ScramMechanism.SCRAM_SHA_512, "x", 4096),
    ]


@pytest.mark.parametrize(
    "value", ["", "canary", "password=", "password=a,canary", "iterations=x,password=canary"]
)
def test_parse_credentials_refuses_malformed_value_without_quoting_it(value: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse_credentials({"SCRAM-SHA-256": value})
    assert "canary" not in str(refused.value)
