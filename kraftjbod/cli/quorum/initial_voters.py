"""PURE. The first voters, from the flags of ``kraftjbod-storage format``; messages are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

from kraftjbod.core.errors import InvalidUuidText, StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.node_config import Endpoint, StorageSettings
from kraftjbod.core.node_config import Voter as Address
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumFlags:
    standalone: bool = False
    no_initial_controllers: bool = False
    initial_controllers: str | None = None

    @property
    def names_voters(self) -> bool:
        return self.standalone or self.initial_controllers is not None

    def check(self, settings: StorageSettings) -> None:
        """Check the flags.

        :raises StartupError: they contradict each other or the configuration.
        """
        given = [self.standalone, self.no_initial_controllers, self.initial_controllers is not None]
        if sum(given) > 1:
            raise StartupError(
                "Only one of --standalone, --initial-controllers and --no-initial-controllers "
                "may be given."
            )
        is_controller = "controller" in settings.process_roles
        is_static = bool(settings.controller_quorum_voters)
        if self.standalone and not is_controller:
            raise StartupError("You can only use --standalone on a controller.")
        if self.names_voters and is_static:
            raise StartupError(
                "You cannot specify controller.quorum.voters and format the node with "
                "--initial-controllers or --standalone. If you want to use dynamic quorum, please "
                "remove controller.quorum.voters and specify controller.quorum.bootstrap.servers "
                "instead."
            )
        if is_controller and not is_static and not any(given):
            raise StartupError(
                "Because controller.quorum.voters is not set on this controller, you must specify "
                "one of the following: --standalone, --initial-controllers, or "
                "--no-initial-controllers."
            )

    def voters(
        self, node_id: BrokerId, own: Endpoint | None, directory_id: DirectoryId
    ) -> VoterSet | None:
        """Return the first voters; None if the flags name none.

        The metadata log or the configuration names the voters then.

        :param own: this controller's endpoint.
        :param directory_id: id of this controller's metadata directory, for ``--standalone``.
        :raises StartupError: the flags are malformed, or ``--standalone`` lacks ``own``.
        """
        if self.standalone:
            if own is None:
                raise StartupError("listeners has none of controller.listener.names")
            return VoterSet((Voter(ReplicaKey(node_id, directory_id), (own.text,)),))
        if self.initial_controllers is None:
            return None
        name = "CONTROLLER" if own is None else own.name
        return parse_controllers(self.initial_controllers, name)


def parse_controllers(text: str, listener: str) -> VoterSet:
    """Parse ``id@host:port:directoryId,...``.

    :param listener: name of the voters' listener.
    :raises StartupError: a part is malformed or a duplicate; the message names it.
    """
    voters: list[Voter] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        address, _, directory = part.rpartition(":")
        try:
            found = Address.parse(address)
            key = ReplicaKey(found.node_id, DirectoryId.parse(directory))
        except (ValueError, InvalidUuidText) as e:
            raise StartupError(
                f"{part!r} is no controller: write id@host:port:directoryId ({e})"
            ) from e
        if any(voter.key.node_id == key.node_id for voter in voters):
            raise StartupError(f"--initial-controllers names node {key.node_id} twice.")
        voters.append(Voter(key, (Endpoint(listener, found.host, found.port).text,)))
    if not voters:
        raise StartupError("--initial-controllers names no controller.")
    return VoterSet(tuple(voters))
