"""``each_case``: one test that runs for many seeds or positions.

``pytest.mark.parametrize`` makes a test of each value, which is right for cases with a meaning.
Values without one, of which the next run may as well take others, are one test.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

R = TypeVar("R")


def each_case(
    name: str, values: Iterable[object]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator that runs a test for each of ``values`` of its parameter ``name``.

    The first failure ends the test, and its report names the value. Fixtures are made once, for all
    values.
    """
    cases = tuple(values)
    assert cases, name

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_all_async(**fixtures: object) -> None:
                for value in cases:
                    with _named(name, value):
                        await test(**fixtures, **{name: value})

            return _without(name, run_all_async)

        @functools.wraps(test)
        def run_all(**fixtures: object) -> None:
            for value in cases:
                with _named(name, value):
                    test(**fixtures, **{name: value})

        return _without(name, run_all)

    return decorate


@contextmanager
def _named(name: str, value: object) -> Iterator[None]:
    try:
        yield
    except BaseException as e:
        e.add_note(f"with {name}={value!r}")
        raise


def _without(name: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the parameter ``name`` from pytest, which would look for a fixture."""
    signature = inspect.signature(test)
    parameters = [one for one in signature.parameters.values() if one.name != name]
    assert len(parameters) < len(signature.parameters), name
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test
