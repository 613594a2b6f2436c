"""Compiles the native kernels into a wheel; without a compiler the wheel has none, and says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NATIVE = Path("src/luce/engine/native")


class NativeKernels(BuildHookInterface[Any]):
    """Puts the library beside its sources. An editable install builds on first use instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build into `build_data`."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        build = _load(root / _NATIVE / "build.py")
        target = root / "build" / build.SHIPPED.name
        try:
            build.build(build.find_compiler(), target)
        except build.BuildError as error:
            self.app.display_warning(f"no native CPU kernels in this wheel: {error}")
            return
        build_data["force_include"][str(target)] = f"luce/engine/native/{build.SHIPPED.name}"
        build_data["pure_python"] = False
        # The library talks to Python through ctypes and fits every version of it.
        build_data["tag"] = f"py3-none-{_platform()}"


def _load(path: Path) -> ModuleType:
    """The module at a path; luce itself may not be importable while it is built."""
    spec = importlib.util.spec_from_file_location("luce_native_build", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _platform() -> str:
    """This machine's wheel tag, as in linux_x86_64."""
    import sysconfig

    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
