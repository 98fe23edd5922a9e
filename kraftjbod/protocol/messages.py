"""PURE. Kafka's messages by name: ``from kraftjbod.protocol.messages import FetchRequest``.

A class is created from its schema on first use. Structs inside a message are attributes of its
class, such as ``FetchRequest.FetchPartition``. Editors and type checkers find the fields in
messages.pyi, which ``make stubs`` generates.
"""

from __future__ import annotations

import functools

from kraftjbod.protocol.schemas.kafka_message import Message, build_classes
from kraftjbod.protocol.schemas.kafka_schema import load_message

_ENDINGS = ("Request", "Response", "Key", "Value", "Subscription", "Assignment")


@functools.cache
def message_classes(name: str) -> dict[str, type[Message]]:
    """Return the class of a message and the classes of its inner structs, by name.

    :raises KeyError: the name is unknown.
    """
    return build_classes(load_message(name))


def __getattr__(name: str) -> type[Message]:
    if not name.endswith(_ENDINGS):
        raise AttributeError(name)
    try:
        return message_classes(name)[name]
    except KeyError:
        raise AttributeError(f"there is no message {name}") from None
