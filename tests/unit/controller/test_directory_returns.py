"""``unclean_directories``: directories that a registration returns unclean."""

from __future__ import annotations

import pytest

from kraftjbod.controller.directory_returns import unclean_directories
from kraftjbod.core.ids import MIGRATING_DIR, UNASSIGNED_DIR, BrokerId, Uuid
from kraftjbod.protocol.rpc_messages import BrokerRegistrationRequest, ListenerInfo
from tests.golden.transcript import World, directory

UNKNOWN = (UNASSIGNED_DIR, MIGRATING_DIR)


def _request(
    dirs: str, epochs: tuple[int, ...], incarnation: bytes, writers: tuple[bytes, ...]
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest.model_validate(
        {
            "broker_id": 1,
            "cluster_id": "golden",
            "incarnation_id": bytes(_incarnation(incarnation)),
            "listeners": [ListenerInfo(name="PLAINTEXT", host="h", port=9093)],
            "log_dirs": [bytes(directory(name)) for name in dirs],
            "clean_shutdown_epochs": epochs,
            "clean_shutdown_incarnations": [bytes(_incarnation(one)) for one in writers],
        }
    )


def _incarnation(name: bytes) -> Uuid:
    return Uuid(name.rjust(16, b"~"))


@pytest.mark.parametrize(
    ("dirs", "epochs", "incarnation", "writers", "expected"),
    [
        pytest.param("ab", (7, 7), b"new", (), "", id="clean shutdown"),
        pytest.param("ab", (7, -1), b"new", (), "b-", id="clean shutdown except one directory"),
        pytest.param("ab", (), b"new", (), "ab-", id="no clean shutdown epochs"),
        pytest.param("ab", (5, 7), b"new", (), "a-", id="epoch of an earlier incarnation"),
        pytest.param(
            "ac", (7, -1), b"new", (), "c", id="an added directory has no unknown replicas"
        ),
        pytest.param("ab", (7, 7), b"same", (), "", id="registered again while running"),
        pytest.param("ab", (7, -1), b"same", (), "b-", id="one directory returned"),
        pytest.param("ab", (5, 5), b"same", (), "", id="response to the first one was lost"),
        pytest.param("ab", (-1, 5), b"same", (), "a-", id="response lost, one unclean"),
        pytest.param("ab", (7, 7), b"new", (b"same", b"other"), "b-", id="of another incarnation"),
        pytest.param("ab", (7, 5), b"same", (b"same", b"before"), "", id="decided before"),
        pytest.param("", (), b"new", (), "-", id="no directories"),
        pytest.param("", (), b"same", (), "", id="no directories, registered again"),
    ],
)
def test_unclean_directories_lack_the_clean_shutdown_epoch_or_incarnation(
    dirs: str,
    epochs: tuple[int, ...],
    incarnation: bytes,
    writers: tuple[bytes, ...],
    expected: str,
) -> None:
    world = World()
    list(world.run("up 1 dirs=a,b incarnation=same"))
    former = world.state.brokers[BrokerId(1)]
    object.__setattr__(former, "epoch", 7)
    object.__setattr__(former, "previous_epoch", 5)
    wanted = {directory(name) for name in expected if name != "-"}
    wanted |= set(UNKNOWN) if "-" in expected else set()
    assert unclean_directories(former, _request(dirs, epochs, incarnation, writers)) == wanted
