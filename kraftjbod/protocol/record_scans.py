"""PURE. Chooses the form of byte_scans.py: the compiled module, or the interpreted source.

The name of a compiled module contains the hash of its source (conf/compile_scans.py). Only the
module of the current source is imported. If it does not exist or cannot be imported, as from a zip
file, the source is interpreted, which is slower.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

from kraftjbod.protocol import byte_scans

_NAME_DIGITS: Final = 16


def compiled_name(source: bytes) -> str:
    """Return the name of the module that is compiled from ``source``."""
    return f"_byte_scans_{hashlib.sha256(source).hexdigest()[:_NAME_DIGITS]}"


def compiled_form() -> ModuleType | None:
    """Return the compiled module of the current byte_scans.py; None if it cannot be imported."""
    source = pkgutil.get_data(__package__, "byte_scans.py")
    if source is None:
        return None
    try:
        return importlib.import_module(f"{__package__}.{compiled_name(source)}")
    except ImportError:
        return None


_compiled = compiled_form()
FORM: Final[Literal["compiled", "interpreted"]] = "compiled" if _compiled else "interpreted"


def with_form(version: str) -> str:
    """Return the text of ``--version``: the version, and the form of the scans."""
    return f"{version}, byte scans: {FORM}"


if TYPE_CHECKING:
    BatchScan = byte_scans.BatchScan
    check_records = byte_scans.check_records
    find_records = byte_scans.find_records
    find_timestamp = byte_scans.find_timestamp
    latest_of_producers = byte_scans.latest_of_producers
    require_end = byte_scans.require_end
else:
    _form = _compiled or byte_scans
    BatchScan = _form.BatchScan
    check_records = _form.check_records
    find_records = _form.find_records
    find_timestamp = _form.find_timestamp
    latest_of_producers = _form.latest_of_producers
    require_end = _form.require_end
