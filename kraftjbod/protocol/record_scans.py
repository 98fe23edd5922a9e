"""PURE. Which form of byte_scans.py runs here: compiled, or the source as it is.

The name of a compiled module holds the hash of the source that it was compiled from
(conf/compile_scans.py), and only the one of the very source beside it is ever imported: what was
compiled from another source is as good as not there. Where none is found, or what is found does not
load on this machine or out of a zip, the source runs; all works, only slower.
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
    """What the module is called that was compiled from ``source``."""
    return f"_byte_scans_{hashlib.sha256(source).hexdigest()[:_NAME_DIGITS]}"


def compiled_form() -> ModuleType | None:
    """The compiled form of byte_scans.py as it is now; None if there is none here."""
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
    """What ``--version`` says after a program's name."""
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
