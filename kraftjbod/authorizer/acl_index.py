"""PURE. ``AclIndex``: find the permissions of a principal for a resource without a search.

* A lookup costs one dictionary access for each different length of a prefix that is not longer than
  the name of the resource. The number of bindings has no influence.
* Permissions for one pattern, principal and host are two bit sets, of denied and of allowed
  operations.
* Two bindings may be equal, because records identify bindings by ids. The second one has no effect
  before the first one is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from kraftjbod.core.acl import (
    WILDCARD_HOST,
    WILDCARD_NAME,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

_MAX_CACHED_HOSTS: Final = 10_000


@dataclass(slots=True)
class Grants:
    """Operations that bindings deny and allow to one principal, as two bit sets: bit n is the
    operation with the number n.
    """

    denied: int = 0
    allowed: int = 0


#: Grants by principal and canonical host.
_GrantsOfPattern = dict[tuple[str, str], Grants]


@dataclass(slots=True)
class _Patterns:
    """The patterns of one resource type."""

    literal: dict[str, _GrantsOfPattern] = field(default_factory=dict)
    prefixed: dict[str, _GrantsOfPattern] = field(default_factory=dict)
    #: Number of prefixes by length.
    lengths: Counter[int] = field(default_factory=Counter)
    sorted_lengths: tuple[int, ...] = ()


@lru_cache(maxsize=_MAX_CACHED_HOSTS)
def canonical_host(host: str) -> str:
    """Return one spelling for all spellings of a numeric address.

    Java writes IPv6 addresses without ``::``, and IPv4 addresses that are mapped to IPv6 as IPv4. A
    text that is no address, such as ``*``, is returned unchanged.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.compressed


class AclIndex:
    """Index of all bindings that finds the denied and allowed operations of a principal on a
    resource.
    """

    def __init__(self) -> None:
        self._types: dict[AclResourceType, _Patterns] = {}
        self._counts: Counter[AclBinding] = Counter()
        #: Bindings by resource type and principal, for :meth:`bindings_of`.
        self._by_principal: dict[tuple[AclResourceType, str], set[AclBinding]] = {}

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, binding: AclBinding) -> None:
        binding = _canonical(binding)
        self._counts[binding] += 1
        if self._counts[binding] > 1:
            return
        owner = (binding.resource_type, binding.principal)
        self._by_principal.setdefault(owner, set()).add(binding)
        patterns = self._types.setdefault(binding.resource_type, _Patterns())
        grants_of = self._grants_of(patterns, binding)
        grants = grants_of.setdefault(_subject(binding), Grants())
        bit = 1 << binding.operation
        if binding.permission is AclPermission.DENY:
            grants.denied |= bit
        else:
            grants.allowed |= bit

    def remove(self, binding: AclBinding) -> None:
        binding = _canonical(binding)
        assert self._counts[binding], binding
        self._counts[binding] -= 1
        if self._counts[binding]:
            return
        del self._counts[binding]
        owner = (binding.resource_type, binding.principal)
        self._by_principal[owner].discard(binding)
        if not self._by_principal[owner]:
            del self._by_principal[owner]
        self._take_grant(binding)

    def clear(self) -> None:
        self._types.clear()
        self._counts.clear()
        self._by_principal.clear()

    def grants(
        self, principal: str, host: str, resource_type: AclResourceType, name: str
    ) -> Grants | None:
        """Return the operations that bindings deny and allow to the principal.

        None if no binding of any principal applies to a resource of this type and name.

        :param host: numeric address of the client, in any spelling.
        """
        patterns = self._types.get(resource_type)
        if patterns is None:
            return None
        host = canonical_host(host)
        subjects = (
            (principal, host),
            (principal, WILDCARD_HOST),
            (WILDCARD_PRINCIPAL, host),
            (WILDCARD_PRINCIPAL, WILDCARD_HOST),
        )
        result: Grants | None = None
        for grants_of in _matching(patterns, name):
            if result is None:
                result = Grants()
            for subject in subjects:
                grants = grants_of.get(subject)
                if grants is not None:
                    result.denied |= grants.denied
                    result.allowed |= grants.allowed
        return result

    def bindings_of(
        self, principal: str, host: str, resource_type: AclResourceType
    ) -> Iterator[AclBinding]:
        """Yield the bindings of one resource type that apply to a principal at a host."""
        hosts = (WILDCARD_HOST, canonical_host(host))
        for name in dict.fromkeys((principal, WILDCARD_PRINCIPAL)):
            for binding in self._by_principal.get((resource_type, name), ()):
                if binding.host in hosts:
                    yield binding

    def _grants_of(self, patterns: _Patterns, binding: AclBinding) -> _GrantsOfPattern:
        name = binding.resource_name
        if binding.pattern_type is not AclPatternType.PREFIXED:
            return patterns.literal.setdefault(name, {})
        if name not in patterns.prefixed:
            patterns.prefixed[name] = {}
            patterns.lengths[len(name)] += 1
            patterns.sorted_lengths = tuple(sorted(patterns.lengths))
        return patterns.prefixed[name]

    def _take_grant(self, binding: AclBinding) -> None:
        bit = 1 << binding.operation
        patterns = self._types[binding.resource_type]
        is_prefixed = binding.pattern_type is AclPatternType.PREFIXED
        pool = patterns.prefixed if is_prefixed else patterns.literal
        grants_of = pool[binding.resource_name]
        grants = grants_of[_subject(binding)]
        if binding.permission is AclPermission.DENY:
            grants.denied &= ~bit
        else:
            grants.allowed &= ~bit
        if not (grants.denied or grants.allowed):
            del grants_of[_subject(binding)]
        if not grants_of:
            del pool[binding.resource_name]
            if is_prefixed:
                length = len(binding.resource_name)
                patterns.lengths[length] -= 1
                if not patterns.lengths[length]:
                    del patterns.lengths[length]
                patterns.sorted_lengths = tuple(sorted(patterns.lengths))


def _canonical(binding: AclBinding) -> AclBinding:
    host = canonical_host(binding.host)
    return binding if host == binding.host else replace(binding, host=host)


def _subject(binding: AclBinding) -> tuple[str, str]:
    return binding.principal, binding.host


def _matching(patterns: _Patterns, name: str) -> Iterator[_GrantsOfPattern]:
    """Yield the grants of each pattern that applies to the resource ``name``."""
    literal = patterns.literal
    if (grants := literal.get(name)) is not None:
        yield grants
    if name != WILDCARD_NAME and (grants := literal.get(WILDCARD_NAME)) is not None:
        yield grants
    prefixed, end = patterns.prefixed, len(name)
    for length in patterns.sorted_lengths:
        if length > end:
            break
        if (grants := prefixed.get(name[:length])) is not None:
            yield grants
