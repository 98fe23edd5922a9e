"""How the client of a test notices that the server closed its connection."""

from __future__ import annotations

import asyncio


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the server closes the connection without a byte; a reset counts as a close."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
