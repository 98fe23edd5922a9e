"""PURE. Kafka's messages by name: ``from kraftjbod.protocol.messages import FetchRequest``.

A class is made from its schema when it is first asked for; structs inside a message are attributes
of its class, ``FetchRequest.FetchPartition``. Which fields they have, editors and type checkers
read in messages.pyi, which ``make stubs`` writes.
"""

from __future__ import annotations

import functools

from kraftjbod.protocol.schemas.kafka_message import Message, build_classes
from kraftjbod.protocol.schemas.kafka_schema import load_message

_ENDINGS = ("Request", "Response", "Key", "Value", "Subscription", "Assignment")


@functools.cache
def message_classes(name: str) -> dict[str, type[Message]]:
    """The class of a message and those of the structs inside it, by name.

    :raises KeyError: if neither Kafka nor we have such a message.
    """
    return build_classes(load_message(name))


def __getattr__(name: str) -> type[Message]:
    if not name.endswith(_ENDINGS):
        raise AttributeError(name)
    try:
        return message_classes(name)[name]
    except KeyError:
        raise AttributeError(f"there is no message {name}") from None
