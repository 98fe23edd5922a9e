"""kcat and its group consumer. This program converts kcat's output to JSON lines.

kcat prints no offsets of sent records, commits automatically, and has no admin client.
See ``tests/clients/programs.py`` for the verbs.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from tests.clients.python.lines import (
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    bursts,
    input_ended,
    owns,
    tell,
)

bootstrap, verb, *arguments = sys.argv[1:]
KCAT = ["kcat", "-b", bootstrap]
AS_LINES = ["-f", '{"read": [%p, %o, %s]}\n']


def produce(topic: str, first: str, count: str, pause_ms: str, *more: str) -> None:
    """Send through one kcat process. All records are acknowledged if it ends with 0."""
    sender = subprocess.Popen(
        [*KCAT, "-P", "-t", topic, "-K", ":", "-X", "acks=all", *more], stdin=subprocess.PIPE
    )
    assert sender.stdin is not None
    for burst in bursts(int(first), int(count)):
        sender.stdin.write(b"".join(b"%d:%d\n" % (number, number) for number in burst))
        sender.stdin.flush()
        time.sleep(int(pause_ms) / 1000)
    sender.stdin.close()
    if sender.wait() != 0:
        raise SystemExit(f"kcat ended with {sender.returncode}")
    for number in range(int(first), int(first) + int(count)):
        tell("sent", [-1, -1, number])


def read(topic: str, count: str) -> None:
    command = [*KCAT, "-C", "-u", "-q", "-t", topic, "-o", "beginning", "-c", count, *AS_LINES]
    subprocess.run(command, check=True)


def group(topic: str, name: str) -> None:
    ended = input_ended()
    settings = {
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
    }
    options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    member = subprocess.Popen(
        [*KCAT, "-G", name, "-u", *options, *AS_LINES, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert member.stdout is not None
    assert member.stderr is not None
    # kcat writes a line in pieces, so that it must not share standard output with ``tell``.
    telling = [
        threading.Thread(target=tell_records, args=(member.stdout,)),
        threading.Thread(target=tell_rebalances, args=(member.stderr,)),
    ]
    for thread in telling:
        thread.start()
    ended.wait()
    member.send_signal(signal.SIGTERM)
    for thread in telling:
        thread.join()
    if member.wait() != 0:
        raise SystemExit(f"kcat ended with {member.returncode}")
    tell("left")


def tell_records(records: IO[str]) -> None:
    for line in records:
        tell("read", json.loads(line)["read"])


def tell_rebalances(errors: IO[str]) -> None:
    for line in errors:
        print(line, end="", file=sys.stderr)
        if "rebalanced" in line:
            assigned = line.partition("assigned:")[2]
            owns(int(number) for number in re.findall(r"\[(\d+)\]", assigned))


(version,) = re.findall(r"Version ([\d.]+)", subprocess.getoutput("kcat -V"))
tell("version", version)
match verb:
    case "idempotent":
        produce(*arguments, "-X", "enable.idempotence=true")
    case _:
        {"produce": produce, "read": read, "group": group}[verb](*arguments)
