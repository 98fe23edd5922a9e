"""WIRE. The active controller of a local cluster, according to the events that controllers log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from kraftjbod.local.daemon_process import DaemonProcess


def active_controller(controllers: Iterable[DaemonProcess]) -> DaemonProcess | None:
    """Return the running active controller with the newest term, or ``None`` if none is active."""
    active = [one for one in controllers if one.is_running and led_term(one) > 0]
    return max(active, key=led_term, default=None)


def led_term(controller: DaemonProcess) -> int:
    """Return the term in which the controller is active by its events, or 0 if it is not active."""
    term = 0
    for event in controller.events():
        match event["event"]:
            case "controller_active":
                term = event["term"]
            case "controller_resigned" | "daemon_stopped":
                term = 0
    return term


def activated_after(controllers: Iterable[DaemonProcess], wall_s: float) -> float | None:
    """Return the time of the first ``controller_active`` event after ``wall_s``, or ``None``.

    Both times are wall clock times in seconds since the epoch.
    """
    instants = (
        datetime.fromisoformat(event["timestamp"]).timestamp()
        for one in controllers
        for event in one.events("controller_active")
    )
    return min((at_s for at_s in instants if at_s > wall_s), default=None)
