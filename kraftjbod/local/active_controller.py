"""WIRE. Which controller of a local cluster decides, by what the controllers logged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from kraftjbod.local.daemon_process import DaemonProcess


def active_controller(controllers: Iterable[DaemonProcess]) -> DaemonProcess | None:
    """The one of the newest term that runs; ``None`` while nobody decides."""
    active = [one for one in controllers if one.is_running and led_term(one) > 0]
    return max(active, key=led_term, default=None)


def led_term(controller: DaemonProcess) -> int:
    """In which term it became active, by what it logged; 0 if it is not."""
    term = 0
    for event in controller.events():
        match event["event"]:
            case "controller_active":
                term = event["term"]
            case "controller_resigned" | "daemon_stopped":
                term = 0
    return term


def activated_after(controllers: Iterable[DaemonProcess], wall_s: float) -> float | None:
    """When one of them first became active after that instant (both by the wall clock)."""
    instants = (
        datetime.fromisoformat(event["timestamp"]).timestamp()
        for one in controllers
        for event in one.events("controller_active")
    )
    return min((at_s for at_s in instants if at_s > wall_s), default=None)
