"""PURE. Regular expressions that strangers send, matched in time that grows with the text alone.

Python's own engine tries one way after the other, and some expressions have more ways than a broker
has time for. Here all ways are gone at once, by an automaton of limited size, whose states are made
when a text first leads there. As in RE2, which Kafka takes them by, there are no back-references
and no look-around; word boundaries are missing too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _constants as codes  # type: ignore[attr-defined] # typeshed has them not
from re import _parser as parser  # type: ignore[attr-defined] # likewise
from typing import Any, Final

from kraftjbod.core.errors import ErrorCode, OperatingError

_MAX_PATTERN_CHARS: Final = 1_024
#: Of the automaton; what is repeated counts each time.
_MAX_NODES: Final = 512
#: Moves that are remembered of one pattern.
_MAX_MOVES: Final = 10_000

_Takes = Callable[[str], bool]
_CATEGORIES: Final[dict[Any, re.Pattern[str]]] = {
    codes.CATEGORY_DIGIT: re.compile(r"[0-9]"),
    codes.CATEGORY_NOT_DIGIT: re.compile(r"[^0-9]"),
    codes.CATEGORY_SPACE: re.compile(r"[\t\n\f\r ]"),
    codes.CATEGORY_NOT_SPACE: re.compile(r"[^\t\n\f\r ]"),
    codes.CATEGORY_WORD: re.compile(r"[0-9A-Za-z_]"),
    codes.CATEGORY_NOT_WORD: re.compile(r"[^0-9A-Za-z_]"),
}
_STARTS: Final = (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING)
_ENDS: Final = (codes.AT_END, codes.AT_END_STRING)


class _Node:
    """A step of the automaton: what it takes, or where it may go on without taking anything."""

    __slots__ = ("at_end", "at_start", "next", "takes")

    def __init__(self, takes: _Takes | None = None) -> None:
        self.takes = takes
        self.next: list[_Node] = []
        #: Passed only before the first, or after the last, character.
        self.at_start = self.at_end = False


_State = frozenset[_Node]


class LinearPattern:
    """:meth:`fits` for whole texts."""

    def __init__(self, pattern: str) -> None:
        """:raises OperatingError: INVALID_REGULAR_EXPRESSION, for what is none, or too much."""
        if len(pattern) > _MAX_PATTERN_CHARS:
            raise _refusal(pattern[:40] + "...", f"longer than {_MAX_PATTERN_CHARS} characters")
        try:
            parsed = parser.parse(pattern)
            builder = _Builder()
            first, self._last = _Node(), _Node()
            first.next.append(builder.sequence(parsed, parsed.state.flags, self._last))
        except (re.error, OverflowError, RecursionError, _Unsupported) as e:
            raise _refusal(pattern, str(e)) from e
        self._start = _closure([first], at_start=True)
        self._moves: dict[tuple[_State, str], _State] = {}

    def fits(self, text: str) -> bool:
        state = self._start
        for char in text:
            after = self._moves.get((state, char))
            if after is None:
                after = self._move(state, char)
            if not after:
                return False
            state = after
        return self._last in _closure(state, at_start=not text, at_end=True)

    def _move(self, state: _State, char: str) -> _State:
        if len(self._moves) >= _MAX_MOVES:
            self._moves.clear()
        taken = [after for node in state if node.takes and node.takes(char) for after in node.next]
        self._moves[state, char] = found = _closure(taken)
        return found


def _refusal(pattern: str, why: str) -> OperatingError:
    return OperatingError(
        f"{pattern!r} is no regular expression that is understood here: {why}",
        code=ErrorCode.INVALID_REGULAR_EXPRESSION,
    )


def _closure(nodes: Iterable[_Node], *, at_start: bool = False, at_end: bool = False) -> _State:
    """With all that can be reached without a further character."""
    found, waiting = set[_Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        is_open = node.takes is None and (at_start or not node.at_start)
        if is_open and (at_end or not node.at_end):
            waiting += node.next
    return frozenset(found)


class _Unsupported(Exception):
    """Named by the message."""


class _Builder:
    """Makes nodes of what Python's parser made of the text, from its end to its beginning."""

    def __init__(self) -> None:
        self._count = 0

    def sequence(self, items: Any, flags: int, after: _Node) -> _Node:
        """Nodes for ``items``, then ``after``; the first of them."""
        for operator, argument in reversed(list(items)):
            after = self._item(operator, argument, flags, after)
        return after

    def _node(self, *following: _Node, takes: _Takes | None = None) -> _Node:
        self._count += 1
        if self._count > _MAX_NODES:
            raise _Unsupported("it is too large")
        node = _Node(takes)
        node.next += following
        return node

    def _item(self, operator: Any, argument: Any, flags: int, after: _Node) -> _Node:
        match operator:
            case codes.BRANCH:
                ways = [self.sequence(way, flags, after) for way in argument[1]]
                return self._node(*ways)
            case codes.SUBPATTERN:
                _, added, removed, items = argument
                return self.sequence(items, (flags | added) & ~removed, after)
            case codes.MAX_REPEAT | codes.MIN_REPEAT:
                least, most, items = argument
                return self._repeat(least, most, items, flags, after)
            case codes.AT if argument in _STARTS or argument in _ENDS:
                node = self._node(after)
                node.at_start, node.at_end = argument in _STARTS, argument in _ENDS
                return node
            case codes.LITERAL | codes.NOT_LITERAL | codes.ANY | codes.IN:
                return self._node(after, takes=_takes(operator, argument, flags))
        raise _Unsupported(f"{str(operator).lower().replace('_', ' ')} is not supported")

    def _repeat(self, least: int, most: int, items: Any, flags: int, after: _Node) -> _Node:
        if most is codes.MAXREPEAT:
            loop = self._node(after)
            loop.next.append(self.sequence(items, flags, loop))
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._node(self.sequence(items, flags, after), end)
        for _ in range(least):
            after = self.sequence(items, flags, self._node(after))
        return after


def _takes(operator: Any, argument: Any, flags: int) -> _Takes:
    """Which characters one item takes."""
    match operator:
        case codes.ANY:
            takes_newline = bool(flags & re.DOTALL)
            return lambda char: takes_newline or char != "\n"
        case codes.LITERAL:
            members, negated = [(operator, argument)], False
        case codes.NOT_LITERAL:
            members, negated = [(codes.LITERAL, argument)], True
        case _:
            members = [one for one in argument if one[0] is not codes.NEGATE]
            negated = len(members) < len(argument)
    tests = [_member(*one) for one in members]
    if not flags & re.IGNORECASE:
        return lambda char: any(test(char) for test in tests) != negated
    return lambda char: (
        negated != any(test(form) for form in {char, char.lower(), char.upper()} for test in tests)
    )


def _member(operator: Any, argument: Any) -> _Takes:
    match operator:
        case codes.LITERAL:
            return lambda char: ord(char[0]) == argument
        case codes.RANGE:
            first, last = argument
            return lambda char: first <= ord(char[0]) <= last
        case codes.CATEGORY:
            pattern = _CATEGORIES[argument]
            return lambda char: pattern.match(char) is not None
    raise _Unsupported(f"{operator} is not supported")
