"""The control managers of a controller, with commands and results as lines of text.

A line is one command. ``run(line)`` yields its records, then its response or error.
Directories are named by letters; ``-`` is ``UNASSIGNED``, ``lost`` is ``LOST``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.acl import AclOperation, AclPatternType, AclPermission, AclResourceType
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.metadata import records as r
from kraftjbod.metadata.record_codec import decode_entry, encode_entry
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import SecurityRecord
from kraftjbod.protocol import rpc_acl_messages as a
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_controller_messages as n
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol import rpc_quota_messages as u
from kraftjbod.protocol import rpc_scram_messages as s

CLUSTER_ID = "golden"
LATEST = str(LATEST_METADATA_VERSION.value)
ELR = "eligible.leader.replicas.version"
SATURATED = LogDirState.SATURATED
_RESERVED = {"-": UNASSIGNED_DIR, "lost": LOST_DIR, "migrating": MIGRATING_DIR}


def directory(name: str) -> DirectoryId:
    return _RESERVED.get(name) or DirectoryId(name.encode().rjust(16, b"~"))


def directory_name(directory_id: DirectoryId) -> str:
    for name, reserved in _RESERVED.items():
        if directory_id == reserved:
            return name
    return bytes(directory_id).decode().lstrip("~")


def _ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(part)) for part in text.split(",") if part)


def _one_id(text: str) -> BrokerId | None:
    return BrokerId(int(text)) if text else None


def _dirs(text: str) -> tuple[DirectoryId, ...]:
    return tuple(directory(name) for name in text.split(",") if name)


def _impaired(text: str) -> tuple[m.ImpairedLogDir, ...]:
    """Parse ``a,b:stalled``: directory a is saturated, b is stalled."""
    return tuple(
        m.ImpairedLogDir(
            directory_id=directory(name), state=LogDirState(state) if state else SATURATED
        )
        for name, _, state in (word.partition(":") for word in text.split(",") if word)
    )


def _names(directories: Iterable[DirectoryId]) -> str:
    return ",".join(map(directory_name, directories)) or "none"


def _cordons(directories: tuple[DirectoryId, ...]) -> str:
    return f" cordoned {_names(directories)}" if directories else ""


def _impairments(impaired: Iterable[r.ImpairedLogDir]) -> str:
    """Return impaired directories as ``a:saturated,b:stalled``."""
    return ",".join(f"{directory_name(d)}:{state.value}" for d, state in impaired) or "none"


def _elr(elr: Iterable[BrokerId], last_known: Iterable[BrokerId]) -> str:
    return (f" elr {_list(elr)}" if elr else "") + (
        f" last known {_list(last_known)}" if last_known else ""
    )


def _list(ids: Iterable[BrokerId]) -> str:
    return ",".join(map(str, ids)) or "none"


def _incarnation(broker_id: BrokerId, options: dict[str, str]) -> Uuid:
    return _named_incarnation(options.get("incarnation", f"i{broker_id}"))


def _named_incarnation(name: str) -> Uuid:
    return Uuid(name.encode().rjust(16, b"~"))


def _incarnation_name(incarnation_id: Uuid) -> str:
    return bytes(incarnation_id).decode().lstrip("~")


def _acl(words: list[str]) -> a.AclBody:
    """Return the binding ``TOPIC LITERAL t User:a 10.0.0.1 READ ALLOW``. Numbers are allowed."""

    def number(kind: type[IntEnum], word: str) -> int:
        return int(word) if word.isdigit() else kind[word]

    resource_type, pattern_type, name, principal, host, operation, permission = words
    return a.AclBody(
        resource_type=number(AclResourceType, resource_type),
        resource_name=name,
        pattern_type=number(AclPatternType, pattern_type),
        principal=principal,
        host=host,
        operation=number(AclOperation, operation),
        permission=number(AclPermission, permission),
    )


def _outcome(
    item: c.ReassignmentOutcome
    | c.ResourceOutcome
    | c.ElectionOutcome
    | a.AclOutcome
    | a.DeletedAcls
    | s.ScramOutcome
    | u.QuotaOutcome,
) -> str:
    """Return the error code and the message, in which letters replace directory ids."""
    found = item.error_code.name
    if item.error_message:
        found += f": {item.error_message}"
    for letter in "abcdefghijklmnopqrstuvwxyz":
        found = found.replace(str(directory(letter)), letter)
    return found


def _show_registration_change(record: r.BrokerRegistrationChangeRecord) -> str:
    parts = [f"BrokerRegistrationChange {record.broker_id}"]
    if record.fenced is not None:
        parts.append("fenced" if record.fenced else "unfenced")
    if record.in_controlled_shutdown:
        parts.append("shutting down")
    if record.log_dirs is not None:
        parts.append(f"online {_names(record.log_dirs)}")
    if record.cordoned_log_dirs is not None:
        parts.append(f"cordoned {_names(record.cordoned_log_dirs)}")
    if record.impaired_log_dirs is not None:
        parts.append(f"impaired {_impairments(record.impaired_log_dirs)}")
    return " ".join(parts)


class World:
    """The control managers, a manual clock, and the records that were replayed."""

    def __init__(
        self,
        level: MetadataVersion = MetadataVersion.IV_3_7_IV2,
        *,
        make_authorizer: Callable[[], StandardAuthorizer | None] = lambda: None,
    ) -> None:
        self._make_authorizer = make_authorizer
        self.now_ms = 0
        self.entries: list[tuple[r.Record, ...]] = []
        self._drawn = 0
        self.voter_features: dict[BrokerId, dict[str, tuple[int, int]]] = {}
        self.managers = self._make_managers()
        self.commit(self.managers.bootstrap({"metadata.version": level}).records)

    def _make_managers(self) -> ControlManagers:
        return ControlManagers(
            cluster_id=CLUSTER_ID,
            in_file=DynamicControllerConfig(max_partitions_per_request=100),
            node_id=BrokerId(100),
            random_bytes=self._random_bytes,
            draw_below=lambda _: 0,
            controllers=lambda: self.voter_features,
            make_authorizer=self._make_authorizer,
            node_principals=NodePrincipals.parse("User:node-{id}"),
        )

    def rebuild_from_snapshot(self, part_size: int) -> None:
        """Replace the managers by new ones that load a snapshot of the committed state.

        :param part_size: number of records of the snapshot per replay.
        """
        state, fresh = self.state, self._make_managers()
        records = tuple(state.snapshot_records())
        for start in range(0, len(records), part_size):
            fresh.replay_part(records[start : start + part_size], offset=state.offset)
        fresh.replay((), offset=state.offset, epoch=1)
        self.managers = fresh

    @property
    def state(self) -> Any:
        return self.managers.state

    def _random_bytes(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")

    def commit(self, records: tuple[r.Record, ...]) -> None:
        """Encode, decode and replay the records of one entry, as the quorum controller does."""
        if records:
            level = self.state.metadata_version
            decoded = decode_entry(encode_entry(records, level))
            # Records of levels without directories omit fields, so that they decode differently.
            assert decoded == records or not level.has_directories
            self.managers.replay(decoded, offset=self.state.offset + 1, epoch=1)
            self.entries.append(records)

    def ask(self, request: m.RpcRequest) -> m.RpcResponse:
        result = self.managers.decide(request, now_ms=self.now_ms)
        self.commit(result.records)
        return result.response

    # --- commands --------------------------------------------------------------------------------

    def run(self, line: str) -> Iterator[str]:
        verb, *words = shlex.split(line)
        options = {key: value for key, _, value in (word.partition("=") for word in words)}
        command: Callable[[list[str], dict[str, str]], ControllerResult[Any] | None]
        command = getattr(self, f"_do_{verb}")
        try:
            result = command(words, options)
        except OperatingError as e:
            yield f"error {e.code.name}: {e.message}"
            return
        if result is None:
            return
        found = [self._show(record) for record in result.records]
        self.commit(result.records)
        yield from found
        if result.response is not None:
            yield from self._show_reply(result.response)
        elif not found:
            yield "nothing to do"

    def state_lines(self) -> Iterator[str]:
        for broker_id, broker in sorted(self.state.brokers.items()):
            standing = "fenced" if broker.fenced else "unfenced"
            if broker.in_controlled_shutdown:
                standing += ", shutting down"
            lost = f" offline {_names(broker.offline_log_dirs)}" if broker.offline_log_dirs else ""
            online = _names(broker.log_dirs)
            lost += _cordons(broker.cordoned_log_dirs)
            if broker.impaired_log_dirs:
                lost += f" impaired {_impairments(broker.impaired_log_dirs)}"
            yield f"broker {broker_id} epoch {broker.epoch} {standing} online {online}{lost}"
        for controller_id, found in sorted(self.state.controllers.items()):
            incarnation = _incarnation_name(found.incarnation_id)
            yield f"controller {controller_id} incarnation {incarnation}"
        for key, p in self.state.partitions():
            leader = "none" if p.leader == NO_LEADER else p.leader
            yield (
                f"{self._key(key.topic_id, key.partition)} leader {leader} isr {_list(p.isr)} "
                f"replicas {_list(p.replicas)} dirs {_names(p.directories)} "
                f"epochs {p.leader_epoch}/{p.partition_epoch}"
                f"{_elr(p.elr, p.last_known_elr)}"
                f"{' recovering' if p.leader_recovering else ''}"
                f"{self._show_reassignment(p)}"
            )

    def _decide(self, request: m.RpcRequest) -> ControllerResult[Any]:
        return self.managers.decide(request, now_ms=self.now_ms)

    def _clean_epochs(
        self, broker_id: BrokerId, options: dict[str, str]
    ) -> tuple[BrokerEpoch, ...]:
        """Return the broker epoch of the last clean shutdown of each directory in ``dirs=``.

        ``clean=a,c`` names the directories that were shut down cleanly; ``clean_epochs=1,-1`` gives
        the epochs. Without either, the broker's last stop was clean, and a directory that returns
        to a running broker was not.
        """
        if "clean_epochs" in options:
            return tuple(BrokerEpoch(int(part)) for part in options["clean_epochs"].split(","))
        former = self.state.brokers.get(broker_id)
        if former is None or not options.get("dirs"):
            return ()
        epoch, whole = former.epoch, options["dirs"].split(",")
        if "clean" in options:
            whole = options["clean"].split(",")
        elif former.incarnation_id == _incarnation(broker_id, options) and former.known_log_dirs:
            whole = _names(former.log_dirs).split(",")
        return tuple(
            epoch if name in whole else BrokerEpoch(-1) for name in options["dirs"].split(",")
        )

    def _do_register(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        broker_id = BrokerId(int(words[0]))
        return self._decide(
            m.BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=options.get("cluster", CLUSTER_ID),
                incarnation_id=_incarnation(broker_id, options),
                listeners=(m.ListenerInfo(name="PLAINTEXT", host="h", port=9092 + broker_id),),
                rack=options.get("rack"),
                features={
                    "metadata.version": (1, int(options.get("metadata_version", LATEST))),
                    ELR: (0, int(options.get("elr", "1"))),
                },
                log_dirs=_dirs(options.get("dirs", "")),
                cordoned_log_dirs=_dirs(options.get("cordoned", "")),
                forgotten_log_dirs=_dirs(options.get("forgotten", "")),
                log_dir_paths=tuple(f"/{name}" for name in options.get("dirs", "").split(",")),
                clean_shutdown_epochs=self._clean_epochs(broker_id, options),
            )
        )

    def _do_heartbeat(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        broker_id = BrokerId(int(words[0]))
        broker = self.state.brokers.get(broker_id)
        epoch = int(options.get("epoch", broker.epoch if broker else 0))
        return self._decide(
            m.BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=BrokerEpoch(epoch),
                current_metadata_offset=int(options.get("offset", self.state.offset)),
                want_fence="want_fence" in options,
                want_shut_down="want_shut_down" in options,
                offline_log_dirs=_dirs(options.get("offline", "")),
                cordoned_log_dirs=_dirs(options["cordoned"]) if "cordoned" in options else None,
                impaired_log_dirs=_impaired(options["impaired"]) if "impaired" in options else None,
            )
        )

    def _do_feature(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        """Run ``feature 30``, ``feature 17 down=safe`` or ``feature 0 elr down=unsafe dry_run``."""
        update = m.FeatureUpdate(
            name=ELR if "elr" in words else options.get("name", "metadata.version"),
            level=int(words[0]),
            upgrade_type={"": 1, "safe": 2, "unsafe": 3}[options.get("down", "")],
        )
        return self._decide(
            m.UpdateFeaturesRequestRpc(updates=(update,), validate_only="dry_run" in options)
        )

    def _do_up(self, words: list[str], options: dict[str, str]) -> None:
        """Register and unfence a broker without output, at the beginning of a transcript."""
        for line in (f"register {' '.join(words)}", f"heartbeat {words[0]}"):
            printed = list(self.run(line))
            assert not printed[-1].startswith("error"), printed

    def _do_topic(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        assignments = {}
        if "replicas" in options:
            assignments = dict(enumerate(map(_ids, options["replicas"].split("|"))))
        configs = {key: value for key, value in options.items() if "." in key and value}
        configs.pop(words[0], None)
        return self._decide(
            m.CreateTopicsRequestRpc(
                topics=(
                    m.NewTopic(
                        name=words[0],
                        num_partitions=int(options.get("partitions", -1)),
                        replication_factor=int(options.get("rf", -1)),
                        assignments=assignments,
                        configs=configs,
                    ),
                ),
                validate_only="validate_only" in options,
            )
        )

    def _do_grow(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        replicas = options.get("replicas")
        return self._decide(
            m.CreatePartitionsRequestRpc(
                topics=(
                    m.MorePartitions(
                        name=words[0],
                        count=int(words[1]),
                        assignments=None
                        if replicas is None
                        else tuple(map(_ids, replicas.split("|"))),
                    ),
                )
            )
        )

    def _do_delete(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        refs = tuple(m.TopicRef(name=word) for word in words)
        return self._decide(m.DeleteTopicsRequestRpc(topics=refs))

    def _do_assign(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        broker_id = BrokerId(int(words[0]))
        entries = [word.partition("=") for word in words[1:] if not word.startswith("epoch=")]
        epoch = options.get("epoch", self.state.brokers[broker_id].epoch)
        return self._decide(
            m.AssignReplicasToDirsRequest(
                broker_id=broker_id,
                broker_epoch=BrokerEpoch(int(epoch)),
                directories=tuple(
                    m.AssignedDirectory(
                        directory_id=directory(name),
                        topics=(
                            m.AssignedTopic(
                                topic_id=self.find_partition(text).topic_id,
                                partitions=(self.find_partition(text).partition,),
                            ),
                        ),
                    )
                    for text, _, name in entries
                ),
            )
        )

    def _do_alter(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        broker_id, key = BrokerId(int(words[0])), self.find_partition(words[1])
        partition = self.state.partition(key)
        isr = _ids(options["isr"])
        known = self.state.brokers
        registered = ",".join(str(known[b].epoch if b in known else -1) for b in isr)
        epochs = _ids(options.get("broker_epochs", registered))
        leader_epoch = options.get("leader_epoch", partition.leader_epoch if partition else 0)
        epoch = options.get("partition_epoch", partition.partition_epoch if partition else 0)
        return self._decide(
            m.AlterPartitionRequest(
                broker_id=broker_id,
                broker_epoch=self.state.brokers[broker_id].epoch,
                partitions=(
                    m.PartitionIsr(
                        topic_id=key.topic_id,
                        partition=key.partition,
                        leader_epoch=LeaderEpoch(int(leader_epoch)),
                        partition_epoch=PartitionEpoch(int(epoch)),
                        isr=isr,
                        isr_broker_epochs=tuple(map(BrokerEpoch, epochs)),
                        metadata_offset=int(options.get("offset", -1)),
                    ),
                ),
            )
        )

    def _do_reassign(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        """Run ``reassign t-0 replicas=1,2 dirs=any,dirid:a``; all named partitions get the same."""
        texts = (text for text in options.get("dirs", "").split(",") if text)
        dirs = tuple(
            f"dirid:{directory(text[6:])}" if text.startswith("dirid:") else text for text in texts
        )
        replicas = _ids(options["replicas"]) if "replicas" in options else None
        return self._decide(
            c.AlterPartitionReassignmentsRequestRpc(
                partitions=tuple(
                    c.ReassignedPartition(
                        topic=name,
                        partition=int(index),
                        replicas=replicas,
                        target_dirs=dirs,
                    )
                    for name, _, index in (w.rpartition("-") for w in words if "=" not in w)
                ),
                allow_replication_factor_change="same_factor=" not in words,
            )
        )

    def _do_cancel(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        return self._do_reassign(words, {})

    def _do_ongoing(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        wanted = {topic: _ids(options[topic]) for topic in options} if words else None
        return self._decide(c.ListPartitionReassignmentsRequestRpc(partitions=wanted))

    def _do_configure(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        """Run ``configure topic:t set:key=value delete:key``; the type is ``topic`` or ``broker``.

        ``checked_by=1``: broker 1 validated the change.
        """
        kind, _, name = words[0].partition(":")
        changes = []
        for word in words[1:]:
            operation, colon, rest = word.partition(":")
            key, has_value, value = rest.partition("=")
            if colon:
                changes.append(
                    c.ConfigChange(
                        name=key,
                        operation=("set", "delete", "append", "subtract").index(operation),
                        value=value if has_value else None,
                        base=options.get("base"),
                    )
                )
        resource = c.AlteredResource(
            resource_type={"topic": 2, "broker": 4}.get(kind, 8), name=name, changes=tuple(changes)
        )
        return self._decide(
            c.IncrementalAlterConfigsRequestRpc(
                resources=(resource,),
                validate_only="validate_only" in options,
                validated_by=_one_id(options.get("checked_by", "")),
            )
        )

    def _do_configured(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        names = tuple(words) if words else None
        return self._decide(c.DescribeDynamicConfigsRequest(resource_type=4, names=names))

    def _do_producer_ids(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        broker_id = BrokerId(int(words[0]))
        epoch = self.state.brokers[broker_id].epoch
        return self._decide(m.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch))

    def _do_advance(self, words: list[str], _: dict[str, str]) -> None:
        self.now_ms += int(words[0].removesuffix("ms"))

    def _do_sweep(self, _: list[str], __: dict[str, str]) -> ControllerResult[Any]:
        broker_id = self.managers.find_stale_broker(self.now_ms)
        if broker_id is None:
            return ControllerResult(response=None)
        return self.managers.fence_broker(broker_id)

    def _do_preferred(self, _: list[str], __: dict[str, str]) -> ControllerResult[Any]:
        return self.managers.elect_preferred()

    def _do_unclean(self, _: list[str], __: dict[str, str]) -> ControllerResult[Any]:
        return self.managers.elect_unclean()

    def _do_elect(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        """Run ``elect preferred t-0 t-1`` or ``elect unclean t-0``."""
        named = (word.rpartition("-") for word in words[1:])
        return self._decide(
            c.ElectLeadersRequestRpc(
                election_type=c.ElectionType[words[0].upper()],
                partitions=tuple(
                    c.ElectedPartition(topic=topic, partition=int(index))
                    for topic, _, index in named
                ),
            )
        )

    def _do_unregister(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        return self._decide(c.UnregisterBrokerRequestRpc(broker_id=BrokerId(int(words[0]))))

    def _do_controller(self, words: list[str], options: dict[str, str]) -> ControllerResult[Any]:
        """Register a controller: ``controller 100 incarnation=b``.

        ``replaces=`` names the incarnation to replace; the default is the registered one.
        """
        controller_id = BrokerId(int(words[0]))
        present = self.state.controllers.get(controller_id)
        replaced = None if present is None else present.incarnation_id
        if "replaces" in options:
            name = options["replaces"]
            replaced = _named_incarnation(name) if name else None
        return self._decide(
            n.ControllerRegistrationRequest(
                controller_id=controller_id,
                cluster_id=options.get("cluster", CLUSTER_ID),
                incarnation_id=_incarnation(controller_id, options),
                replaced_incarnation_id=replaced,
                directory_id=directory(options.get("dir", "m")),
                listeners=(m.ListenerInfo(name="CONTROLLER", host="h", port=9093),),
                features={
                    "metadata.version": (14, int(options.get("metadata_version", LATEST))),
                    ELR: (0, 1),
                },
                software_version="1.0",
            )
        )

    def _do_unregister_controller(
        self, words: list[str], options: dict[str, str]
    ) -> ControllerResult[Any]:
        """Run ``unregister_controller 100``; with ``found=b`` as a repeated request."""
        found = options.get("found")
        return self._decide(
            n.UnregisterControllerRequestRpc(
                controller_id=BrokerId(int(words[0])),
                is_repeated=found is not None,
                found_incarnation_id=None if found is None else _named_incarnation(found),
            )
        )

    def _do_acl(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        """Run ``acl TOPIC LITERAL t User:a 10.0.0.1 READ ALLOW``: create a binding."""
        return self._decide(a.CreateAclsRequestRpc(creations=(_acl(words),)))

    def _do_delete_acl(self, words: list[str], _: dict[str, str]) -> ControllerResult[Any]:
        """Run ``delete_acl`` with the words of ``acl``. ``-`` as a text selects all."""
        chosen = _acl(words).model_dump()
        texts = ("resource_name", "principal", "host")
        chosen |= {text: None for text in texts if chosen[text] == "-"}
        return self._decide(a.DeleteAclsRequestRpc(filters=(a.AclFilterBody(**chosen),)))

    def _do_quota(self, words: list[str], said: dict[str, str]) -> ControllerResult[Any]:
        """Run ``quota user=alice client-id= producer_byte_rate=5 consumer_byte_rate=``: no name is
        the default, and no value removes a quota."""
        types = ("user", "client-id", "ip")
        change = u.QuotaChange(
            entity=tuple((kind, said[kind] or None) for kind in types if kind in said),
            ops=tuple(
                u.QuotaOp(key=key, value=float(value) if value else None)
                for key, value in said.items()
                if key not in types
            ),
        )
        return self._decide(u.AlterClientQuotasRequestRpc(changes=(change,)))

    def _do_scram(self, words: list[str], said: dict[str, str]) -> ControllerResult[Any]:
        """Run ``scram alice 1 bob 2 iterations=4096``: users and mechanisms, ``-alice`` deletes."""
        names = [word for word in words if "=" not in word]
        changes = [
            s.ScramChange(
                user=user.removeprefix("-"),
                mechanism=int(mechanism),
                is_deletion=user.startswith("-"),
                iterations=int(said.get("iterations", "4096")),
                salt=b"salt",
                stored_key=b"stored",
                server_key=b"server",
            )
            for user, mechanism in zip(names[::2], names[1::2], strict=True)
        ]
        return self._decide(s.AlterUserScramCredentialsRequestRpc(changes=tuple(changes)))

    def _do_settings(self, _: list[str], __: dict[str, str]) -> ControllerResult[Any]:
        """Print the settings of controller 100 that differ from its configuration file."""
        return ControllerResult(response=self.managers.set_by_metadata())

    def _do_votes(self, words: list[str], _: dict[str, str]) -> None:
        """Set the other voters, which support all levels according to their messages."""
        self.voter_features = {
            BrokerId(int(word)): {"metadata.version": (14, int(LATEST))} for word in words
        }

    def _do_take_leadership(self, _: list[str], __: dict[str, str]) -> None:
        self.managers.take_leadership(self.now_ms)

    # --- output ----------------------------------------------------------------------------------

    def find_partition(self, text: str) -> TopicIdPartition:
        name, _, index = text.rpartition("-")
        topic_id = self.state.topic_ids.get(name, TopicId(b"no such topic---"))
        return TopicIdPartition(topic_id, int(index))

    def _key(self, topic_id: TopicId, partition: int) -> str:
        topic = self.state.topics.get(topic_id)
        return f"{topic.name if topic else topic_id}-{partition}"

    def _show_topic(self, record: r.TopicRecord | r.RemoveTopicRecord) -> str:
        if isinstance(record, r.TopicRecord):
            return f"Topic {record.name}"
        return f"RemoveTopic {self.state.topics[record.topic_id].name}"

    def _show_security(self, record: SecurityRecord) -> str:
        match record:
            case r.UserScramCredentialRecord():
                return (
                    f"UserScramCredential {record.name} {record.mechanism.mechanism_name} "
                    f"iterations {record.iterations}"
                )
            case r.RemoveUserScramCredentialRecord():
                return f"RemoveUserScramCredential {record.name} {record.mechanism.mechanism_name}"
            case r.ClientQuotaRecord():
                entity = " ".join(f"{kind} {name or '(default)'}" for kind, name in record.entity)
                return f"ClientQuota {entity}: {record.key} {record.value}"
            case _:
                return self._show_acl(record)

    def _show_acl(
        self, record: r.AccessControlEntryRecord | r.RemoveAccessControlEntryRecord
    ) -> str:
        if isinstance(record, r.AccessControlEntryRecord):
            return f"AccessControlEntry {record.binding.text()}"
        return f"RemoveAccessControlEntry {self.state.acls[record.acl_id].text()}"

    def _show(self, record: r.Record) -> str:
        match record:
            case r.RegisterBrokerRecord():
                standing = "fenced" if record.fenced else "unfenced"
                return (
                    f"RegisterBroker {record.broker_id} epoch {record.broker_epoch} {standing} "
                    f"online {_names(record.log_dirs)}{_cordons(record.cordoned_log_dirs)}"
                )
            case r.BrokerRegistrationChangeRecord():
                return _show_registration_change(record)
            case r.UnregisterBrokerRecord():
                return f"UnregisterBroker {record.broker_id}"
            case r.RegisterControllerRecord():
                supported = ",".join(f"{f.name} {f.lowest}-{f.highest}" for f in record.features)
                incarnation = _incarnation_name(record.incarnation_id)
                return (
                    f"RegisterController {record.controller_id} incarnation {incarnation} "
                    f"dir {directory_name(record.directory_id)} supports {supported}"
                )
            case (
                r.AccessControlEntryRecord()
                | r.RemoveAccessControlEntryRecord()
                | r.UserScramCredentialRecord()
                | r.RemoveUserScramCredentialRecord()
                | r.ClientQuotaRecord()
            ):
                return self._show_security(record)
            case r.UnregisterControllerRecord():
                return f"UnregisterController {record.controller_id}"
            case r.TopicRecord() | r.RemoveTopicRecord():
                return self._show_topic(record)
            case r.PartitionRecord():
                leader = "none" if record.leader == NO_LEADER else record.leader
                return (
                    f"Partition {record.partition_id} replicas {_list(record.replicas)} "
                    f"dirs {_names(record.directories)} isr {_list(record.isr)} leader {leader}"
                )
            case r.PartitionChangeRecord():
                return self._show_change(record)
            case r.ConfigRecord():
                return f"Config {record.resource_name} {record.name}={record.value}"
            case r.FeatureLevelRecord():
                return f"FeatureLevel {record.name} {record.feature_level}"
            case _:
                return str(record)

    @staticmethod
    def _show_reassignment(partition: PartitionRegistration) -> str:
        if not partition.is_reassigning:
            return ""
        adding, removing = partition.adding_replicas, partition.removing_replicas
        return f" adding {_list(adding)} removing {_list(removing)}"

    def _show_change(self, record: r.PartitionChangeRecord) -> str:
        key = TopicIdPartition(record.topic_id, record.partition_id)
        before = self.state.partition(key)
        parts = [f"PartitionChange {self._key(record.topic_id, record.partition_id)}"]
        if record.leader is not None:
            old, new = (
                "none" if leader == NO_LEADER else leader
                for leader in (before.leader, record.leader)
            )
            parts.append(f"leader {old}->{new}")
        if record.isr is not None:
            parts.append(f"isr {_list(record.isr)}")
        if record.replicas is not None:
            parts.append(f"replicas {_list(record.replicas)}")
        if record.directories is not None:
            parts.append(f"dirs {_names(record.directories)}")
        if record.elr is not None:
            parts.append(f"elr {_list(record.elr)}")
        if record.last_known_elr is not None:
            parts.append(f"last known {_list(record.last_known_elr)}")
        if record.leader_recovering is not None:
            parts.append("recovering" if record.leader_recovering else "recovered")
        if record.adding_replicas is not None:
            parts.append(f"adding {_list(record.adding_replicas)}")
        if record.removing_replicas is not None:
            parts.append(f"removing {_list(record.removing_replicas)}")
        return " ".join(parts)

    def _show_reply(self, response: m.RpcResponse) -> Iterator[str]:
        match response:
            case m.BrokerRegistrationResponse():
                yield f"reply: epoch {response.broker_epoch}"
            case m.BrokerHeartbeatResponse():
                parts = ["caught up" if response.is_caught_up else "behind"]
                parts.append("fenced" if response.is_fenced else "unfenced")
                if response.should_shut_down:
                    parts.append("shut down now")
                yield f"reply: {', '.join(parts)}"
            case m.AssignReplicasToDirsResponse():
                for item in response.refused:
                    key = self._key(item.topic_id, item.partition)
                    yield f"refused {key}: {item.error_code.name}"
                yield "reply: accepted" if not response.refused else "reply: accepted the rest"
            case m.AlterPartitionResponse():
                for altered in response.partitions:
                    if altered.error_code:
                        yield f"reply: {altered.error_code.name}"
                    else:
                        yield (
                            f"reply: leader {altered.leader} isr {_list(altered.isr)} "
                            f"epochs {altered.leader_epoch}/{altered.partition_epoch}"
                        )
            case _:
                yield from self._show_admin_reply(response)

    @staticmethod
    def _show_admin_reply(response: m.RpcResponse) -> Iterator[str]:
        match response:
            case (
                m.CreateTopicsResponseRpc()
                | m.CreatePartitionsResponseRpc()
                | m.DeleteTopicsResponseRpc()
            ):
                for topic in response.topics:
                    outcome = topic.error_code.name
                    if topic.error_code:
                        outcome += f": {topic.error_message}"
                    yield f"reply {topic.name}: {outcome}"
            case m.UpdateFeaturesResponseRpc():
                for result in response.results:
                    found = f": {result.error_message}" if result.error_message else ""
                    yield f"reply {result.name}: {result.error_code.name}{found}"
            case c.AlterPartitionReassignmentsResponseRpc() | c.ElectLeadersResponseRpc():
                for item in response.partitions:
                    yield f"reply {item.topic}-{item.partition}: {_outcome(item)}"
            case c.ListPartitionReassignmentsResponseRpc():
                for ongoing in response.partitions:
                    yield (
                        f"{ongoing.topic}-{ongoing.partition} replicas {_list(ongoing.replicas)} "
                        f"adding {_list(ongoing.adding_replicas)} "
                        f"removing {_list(ongoing.removing_replicas)}"
                    )
                yield f"reply: {len(response.partitions)} under way"
            case _:
                yield from World._show_config_reply(response)

    @staticmethod
    def _show_config_reply(response: m.RpcResponse) -> Iterator[str]:
        match response:
            case c.IncrementalAlterConfigsResponseRpc():
                for resource in response.resources:
                    yield f"reply {resource.name}: {_outcome(resource)}"
            case c.DescribeDynamicConfigsResponse():
                for described in response.resources:
                    answered = " ".join(f"{key}={value}" for key, value in described.values.items())
                    yield f"configured {described.name or 'all'}: {answered}"
                yield f"reply: {len(response.resources)} configured"
            case c.UnregisterBrokerResponseRpc() | n.UnregisterControllerResponseRpc():
                yield "reply: unregistered"
            case n.ControllerRegistrationResponse():
                yield "reply: registered"
            case (
                a.CreateAclsResponseRpc()
                | s.AlterUserScramCredentialsResponseRpc()
                | u.AlterClientQuotasResponseRpc()
            ):
                for created in response.results:
                    yield f"reply: {_outcome(created)}"
            case a.DeleteAclsResponseRpc():
                for deleted in response.results:
                    yield f"reply: {_outcome(deleted)}, {len(deleted.matching)} matching"
            case dict():
                yield f"settings: {response}"
            case _:
                yield f"reply: {response}"
