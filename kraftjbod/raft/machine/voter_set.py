"""PURE. ``VoterSet``: the voters as an entry of the log names them (KIP-853).

A voter is a node *and* the directory with its votes and entries. A node that returns with another
disk has lost its votes and entries, so it is not that voter any more (ADR 95).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, InvalidUuidText
from kraftjbod.core.ids import BrokerId, DirectoryId

_VERSION = 0


class ReplicaKey(NamedTuple):
    """Identity of a replica of the log, a voter or an observer."""

    node_id: BrokerId
    directory_id: DirectoryId | None = None
    """None in a static quorum, where voters are known by their node ids alone."""

    def __str__(self) -> str:
        return f"{self.node_id}" if self.directory_id is None else f"{self[0]}-{self[1]}"


@dataclass(frozen=True, slots=True)
class Voter:
    key: ReplicaKey
    #: ``LISTENER://host:port``, as Kafka's tools print them.
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters of the log; empty on an observer that does not know any voter yet."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of_keys(cls, keys: Iterable[ReplicaKey]) -> VoterSet:
        return cls(tuple(Voter(key) for key in keys))

    def __contains__(self, key: ReplicaKey) -> bool:
        return any(voter.key == key for voter in self.voters)

    def __iter__(self) -> Iterator[ReplicaKey]:
        return (voter.key for voter in self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def is_static(self) -> bool:
        """Whether voters are known by their node ids alone, because no entry has named them yet."""
        return any(key.directory_id is None for key in self)

    def known_as(self, key: ReplicaKey) -> ReplicaKey:
        """Return the key by which this set names the voter ``key``; ``key`` itself if it is no
        voter.

        If one of the two keys has no directory, only the node ids are compared.
        """
        for known in self:
            if known.node_id == key.node_id and (
                None in (known.directory_id, key.directory_id) or known == key
            ):
                return known
        return key

    def with_voter(self, voter: Voter) -> VoterSet:
        return VoterSet(tuple(sorted((*self.voters, voter), key=_node_of)))

    def without(self, key: ReplicaKey) -> VoterSet:
        return VoterSet(tuple(voter for voter in self.voters if voter.key != key))

    def endpoints_of(self, key: ReplicaKey) -> tuple[str, ...]:
        """Return the endpoints of a voter; an empty tuple for an observer."""
        return next((voter.endpoints for voter in self.voters if voter.key == key), ())

    def is_majority(self, keys: Iterable[ReplicaKey]) -> bool:
        """Return whether more than half of the voters are among ``keys``."""
        return sum(key in self for key in set(keys)) > len(self.voters) // 2

    def encode(self) -> bytes:
        """Return the set as JSON, the payload of an entry of kind VOTERS."""
        voters = [
            {
                "voterId": key.node_id,
                "voterDirectoryId": None if key.directory_id is None else str(key.directory_id),
                "endpoints": list(endpoints),
            }
            for key, endpoints in ((voter.key, voter.endpoints) for voter in self.voters)
        ]
        return json.dumps({"version": _VERSION, "voters": voters}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> VoterSet:
        """Parse the payload of an entry of kind VOTERS.

        :raises CorruptRecordError: ``payload`` is damaged or of a newer version.
        """
        try:
            found = json.loads(payload)
            version, voters = found["version"], tuple(map(_decode_voter, found["voters"]))
        except (ValueError, KeyError, TypeError, InvalidUuidText) as e:
            raise CorruptRecordError(f"no set of voters: {e!r}") from e
        if version != _VERSION:
            raise CorruptRecordError(f"no set of voters that is known here: version {version}")
        return cls(voters)


def _node_of(voter: Voter) -> BrokerId:
    return voter.key.node_id


def _decode_voter(fields: dict[str, Any]) -> Voter:
    directory = fields["voterDirectoryId"]
    key = ReplicaKey(
        BrokerId(int(fields["voterId"])),
        None if directory is None else DirectoryId.parse(directory),
    )
    return Voter(key, tuple(map(str, fields["endpoints"])))
