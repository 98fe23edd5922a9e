"""Names that no session may have."""

from __future__ import annotations

import pytest

from kraftjbod.net.sasl_mechanism import MAX_USER_NAME_CHARS, LoginFailedError, require_user


def test_require_user_returns_the_name() -> None:
    assert require_user("alice") == "alice"


@pytest.mark.parametrize("user", ["*", "a" * (MAX_USER_NAME_CHARS + 1)])
def test_require_user_refuses_the_wildcard_of_acls_and_long_names(user: str) -> None:
    with pytest.raises(LoginFailedError):
        require_user(user)
