"""Build hook: compiles the shared libraries if there is a C++ compiler; an installation never fails without one.

A compiler that the variable CXX names must work, though: the build fails if it does not. A wheel with compiled kernels
belongs to one platform; without them it is pure Python. SOFTPRUNE_PURE=1 asks for that.
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

COMPILATION = Path("src", "softprune", "_native", "compilation.py")


class KernelHook(BuildHookInterface):
    """Adds the shared libraries to wheels, and makes them in place for editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile and say what the wheel contains."""
        if self.target_name != "wheel" or os.environ.get("SOFTPRUNE_PURE") == "1":
            return
        compilation = load_module(Path(self.root) / COMPILATION)
        try:
            # Installers ask for the metadata first and then for the wheel: everything is compiled once.
            fresh = bool(compilation.arch_flags())
            made = [lib.file if lib.is_built() and not fresh else lib.build() for lib in compilation.LIBRARIES]
        except (RuntimeError, OSError) as error:
            if os.environ.get("CXX", "").strip():
                # Whoever names a compiler wants the kernels: a wheel without them would be found out much later.
                raise RuntimeError(
                    f"the kernels could not be compiled with CXX={os.environ['CXX']!r}: {error}\n"
                    "Mend or unset CXX, or ask for a wheel without kernels with SOFTPRUNE_PURE=1."
                ) from error
            # The reference engine and the plain loop run instead; the engine says how to get the kernels.
            self.app.display_warning(f"softprune is built without its compiled kernels: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(compilation.machine())}"
        build_data["artifacts"] += [f"/{file.relative_to(Path(self.root).resolve()).as_posix()}" for file in made]


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


def load_module(path: Path) -> ModuleType:
    """The module that compiles, without importing the package that is being built."""
    spec = importlib.util.spec_from_file_location("softprune_compilation", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module
