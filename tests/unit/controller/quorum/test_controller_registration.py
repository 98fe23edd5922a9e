"""``ControllerRegistration``: when a controller registers, and how often it retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from kraftjbod.controller.quorum.controller_registration import ControllerRegistration
from kraftjbod.core.errors import NotControllerError
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.protocol.rpc_controller_messages import ControllerRegistrationRequest
from kraftjbod.protocol.rpc_messages import ListenerInfo
from tests.golden.transcript import CLUSTER_ID, World, directory

ID = BrokerId(100)


def incarnation(name: str) -> Uuid:
    return Uuid(name.encode().rjust(16, b"~"))


class Rig:
    """A controller that follows the log of ``active``, at once or only when ``follow`` is
    called."""

    def __init__(self, level: int = 33) -> None:
        self.active = World(MetadataVersion(level))
        self.known = self.active.state.copy()
        self.is_away = False
        self.lags = False
        self.asked = 0
        self.registration = ControllerRegistration(
            request=ControllerRegistrationRequest(
                controller_id=ID,
                cluster_id=CLUSTER_ID,
                incarnation_id=incarnation("mine"),
                directory_id=directory("m"),
                listeners=(ListenerInfo(name="CONTROLLER", host="h", port=1),),
                features={"metadata.version": (14, 33)},
                software_version="1",
            ),
            state=lambda: self.known,
            send=self._send,
            backoff=ExponentialBackoff(initial_ms=1, max_ms=4, random_unit=lambda: 0.5),
        )
        self.task: asyncio.Task[None] | None = None

    async def _send(self, request: ControllerRegistrationRequest) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise NotControllerError("no leader")
        self.active.ask(request)
        if not self.lags:
            self.follow()

    def follow(self) -> None:
        self.known = self.active.state.copy()
        self.registration.note_metadata()

    def run(self, line: str) -> None:
        printed = list(self.active.run(line))
        assert not printed[-1].startswith("error"), printed
        if not self.lags:
            self.follow()

    @property
    def registered(self) -> Uuid | None:
        found = self.active.state.controllers.get(ID)
        return None if found is None else found.incarnation_id

    def begin(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self.registration.run_registration())

    async def idle(self) -> int:
        """Return the number of requests that were sent until the registration stopped sending."""
        self.begin()
        asked = -1
        while asked != self.asked:
            asked = self.asked
            await asyncio.sleep(0.02)
        assert self.task is not None and not self.task.done()
        return asked

    async def has_asked(self, times: int) -> None:
        self.begin()
        while self.asked < times:
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.end()


async def test_controller_registration_replaces_earlier_incarnation_with_one_request(
    rig: Rig,
) -> None:
    rig.run("controller 100 incarnation=before")
    assert (await rig.idle(), rig.registered) == (1, incarnation("mine"))


async def test_registration_retries_until_a_controller_is_active(rig: Rig) -> None:
    rig.is_away = True
    await rig.has_asked(3)
    assert rig.registered is None
    rig.is_away = False
    await rig.idle()
    assert rig.registered == incarnation("mine")


async def test_registration_repeated_before_replay_is_recorded_once(rig: Rig) -> None:
    rig.lags = True
    rig.run("controller 100 incarnation=before")
    rig.follow()
    await rig.has_asked(3)
    records = [record for entry in rig.active.entries[2:] for record in entry]
    assert [record.incarnation_id for record in records] == [incarnation("mine")]
    rig.follow()
    await rig.idle()


async def test_registration_of_late_follower_first_names_no_predecessor(rig: Rig) -> None:
    rig.lags = True
    rig.run("controller 100 incarnation=before")
    await rig.has_asked(2)
    assert rig.registered == incarnation("before"), "the request named no predecessor"
    rig.lags = False
    rig.follow()
    await rig.idle()
    assert rig.registered == incarnation("mine")


async def test_registration_is_repeated_after_unregistration_or_feature_upgrade(rig: Rig) -> None:
    await rig.idle()
    rig.run("unregister_controller 100")
    await rig.idle()
    assert rig.registered == incarnation("mine")
    rig.run("feature 30 down=safe")
    await rig.idle()
    assert rig.registered is None
    rig.run("feature 33")
    await rig.idle()
    assert rig.registered == incarnation("mine")


async def test_registration_replaced_by_another_incarnation_is_not_repeated(rig: Rig) -> None:
    asked = await rig.idle()
    with capture_logs() as events:
        rig.run("controller 100 incarnation=other")
        assert await rig.idle() == asked
        rig.follow()
    assert [event["event"] for event in events] == ["controller_registration_replaced"]
    assert rig.registered == incarnation("other")


async def test_registration_below_required_metadata_version_is_not_sent() -> None:
    rig = Rig(level=30)
    assert await rig.idle() == 0
    rig.run("feature 33")
    await rig.idle()
    assert rig.registered == incarnation("mine")
    await rig.end()
