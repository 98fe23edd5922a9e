"""Puts the compiled form of the byte scans into a wheel, where this machine can compile them.

A hook of hatchling. Without a C compiler or Python's headers the wheel is the same but for that,
and fits every Python. An editable install gets nothing: `make setup` compiles beside the source.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]  # of its build configuration
    def dependencies(self) -> list[str]:
        if self._compiler().obstacle():
            return []
        return ["mypy>=2.4.1,<2.5", "setuptools>=80"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="kraftjbod-wheel-")
        folder = Path(self._folder.name)
        self._compiler().main(folder)
        for made in folder.iterdir():
            build_data["force_include"][str(made)] = f"kraftjbod/protocol/{made.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()

    def _compiler(self) -> ModuleType:
        path = Path(self.root, "conf", "compile_scans.py")
        spec = importlib.util.spec_from_file_location("compile_scans", path)
        assert spec is not None and spec.loader is not None, path
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
