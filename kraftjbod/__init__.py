"""A log cluster that speaks Kafka, in which every disk is its own failure domain.

Read ARCHITECTURE.md beside this file first; it maps every room and file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        # Looked up when asked for: daemons and Spark's workers start without.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kraftjbod.core.version import package_version

        return package_version()
