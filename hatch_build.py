"""Build hook: compiles the kernels of the runtime if there is a C++ compiler; an installation never fails without one.

A wheel with compiled kernels belongs to one platform; without them it is pure Python. SOFTPRUNE_PURE=1 asks for that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNTIME = Path("src", "softprune", "deploy", "runtime")


class KernelHook(BuildHookInterface):
    """Adds the shared library to wheels, and makes it in place for editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile and say what the wheel contains."""
        if self.target_name != "wheel" or os.environ.get("SOFTPRUNE_PURE") == "1":
            return
        builder = load_builder(Path(self.root) / RUNTIME / "build.py")
        try:
            # Installers ask for the metadata first and then for the wheel: the kernels are compiled once.
            library = builder.LIBRARY if builder.is_built() and not builder.arch_flags() else builder.build()
        except (RuntimeError, OSError) as error:
            # The reference engine runs instead and says how to get the kernels.
            self.app.display_warning(f"softprune is built without its compiled kernels: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(builder.machine())}"
        build_data["artifacts"].append(f"/{RUNTIME.as_posix()}/{library.name}")


def platform_tag(machine: str) -> str:
    """The platform of a wheel whose library uses no interface of Python; tools such as auditwheel may widen it.

    Args:
        machine: the processor that the library was built for.
    """
    tag = os.environ.get("SOFTPRUNE_PLATFORM") or sysconfig.get_platform()
    if sys.platform == "darwin" and "SOFTPRUNE_PLATFORM" not in os.environ:
        # The interpreter may be older than what the compiler builds for, or run on several processors.
        _, version, _ = tag.split("-")
        tag = f"macosx-{os.environ.get('MACOSX_DEPLOYMENT_TARGET', version)}-{machine}"
    return tag.replace("-", "_").replace(".", "_")


def load_builder(path: Path) -> ModuleType:
    """The module that compiles, without importing the package that is being built."""
    spec = importlib.util.spec_from_file_location("softprune_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
