"""``ssl.principal.mapping.rules``, with the examples of Kafka's documentation and tests."""

from __future__ import annotations

import pytest

from kraftjbod.core.ssl_principal_rules import parse_principal_rules, principal_name

KAFKA = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),"
    r"ST=(.*?),C=(.*?)$/$1@$2/L, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (KAFKA, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (KAFKA, "CN=Duke,OU=Ops,O=mycp,L=Fulton,ST=MD,C=US", "duke@ops"),
        (KAFKA, "cn=Duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (KAFKA, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("", "CN=a", "CN=a"),
        ("DEFAULT", "CN=a", "CN=a"),
        (r"RULE:CN=(\w+)/$1-$2\/\$1/", "CN=a", "a-$2/$1"),
        (r"RULE:CN=a\/b/x/", "CN=a/b", "x"),
        ("RULE:CN=(x)?a/[$1]/", "CN=a", "[]"),
    ],
)
def test_ssl_principal_uses_first_rule_that_matches_the_whole_name(
    rules: str, name: str, principal: str
) -> None:
    assert principal_name(parse_principal_rules(rules), name) == principal


def test_ssl_principal_of_a_name_that_matches_no_rule_raises_value_error() -> None:
    (rule,) = parse_principal_rules("RULE:CN=a/x/")
    assert rule.apply("CN=ab") is None
    with pytest.raises(ValueError, match="matches CN=ab"):
        principal_name((rule,), "CN=ab")


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAULT/L", "RULE:CN=(.*)", "RULE:CN=(.*)/$1", "RULE:a/b/X", "RULE:(/b/", "x"],
)
def test_ssl_principal_malformed_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_principal_rules(rules)
