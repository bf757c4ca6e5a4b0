"""The build hook: which wheel comes out, with and without a compiler, on each platform."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ["hatchling", "builders", "hooks", "plugin", "interface"]


class Interface:
    """What the hook uses of hatchling, which only the build of a wheel installs."""

    def __init__(self, root: Path, target_name: str = "wheel") -> None:
        self.root, self.target_name, self.warnings = str(root), target_name, list[str]()
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """hatch_build.py with the interface above."""
    for count in range(1, len(NAMES) + 1):
        module = ModuleType(".".join(NAMES[:count]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "BuildHookInterface", Interface, raising=False)
    for name in ("SOFTPRUNE_PURE", "SOFTPRUNE_PLATFORM", "ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    return built


def compilation(**changes: Any) -> SimpleNamespace:
    """A module that compiles two libraries without compiling."""
    given = {"is_built": lambda: True, "arch_flags": list, "machine": lambda: "x86_64", **changes}
    libraries = []
    for place in ("deploy/engine/kernels.so", "ops/recurrence/recurrence.so"):
        file = ROOT.resolve() / "src" / "softprune" / place
        build = given.get("build", lambda file: file)
        libraries.append(SimpleNamespace(file=file, is_built=given["is_built"], build=partial(build, file)))
    return SimpleNamespace(LIBRARIES=libraries, arch_flags=given["arch_flags"], machine=given["machine"])


def initialize(hook: ModuleType, target: str = "wheel") -> tuple[dict[str, Any], list[str]]:
    """What the hook says about the wheel, and its warnings."""
    data: dict[str, Any] = {"artifacts": []}
    made = hook.KernelHook(ROOT, target)
    made.initialize("standard", data)
    return data, made.warnings


def test_a_wheel_with_kernels_is_for_one_platform_and_every_python(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "load_module", lambda path: compilation())
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    data, warnings = initialize(hook)
    assert data["tag"] == "py3-none-linux_x86_64" and data["pure_python"] is False
    assert data["artifacts"] == [
        "/src/softprune/deploy/engine/kernels.so",
        "/src/softprune/ops/recurrence/recurrence.so",
    ]
    assert not warnings


@pytest.mark.parametrize(
    "platform, machine, target, tag",
    [
        ("macosx-10.13-universal2", "x86_64", "11.0", "macosx_11_0_x86_64"),
        ("macosx-10.13-universal2", "arm64", "11.0", "macosx_11_0_arm64"),
        ("macosx-11.0-arm64", "arm64", None, "macosx_11_0_arm64"),
    ],
)
def test_tags_of_macos(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, target: str | None, tag: str
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
    if target:
        monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", target)
    assert hook.platform_tag(machine) == tag
    monkeypatch.setenv("SOFTPRUNE_PLATFORM", "macosx-14.0-arm64")
    assert hook.platform_tag(machine) == "macosx_14_0_arm64"


def test_another_processor_is_compiled_for_again(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def build(file: Path) -> Path:
        made.append(file.stem)
        return file

    again = compilation(build=build, arch_flags=lambda: ["-arch", "arm64"])
    monkeypatch.setattr(hook, "load_module", lambda path: again)
    data, _ = initialize(hook)
    assert made == ["kernels", "recurrence"] and len(data["artifacts"]) == 2


def unbuilt(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the libraries be made anew."""
    real = hook.load_module

    def load(path: Path) -> ModuleType:
        module = real(path)
        monkeypatch.setattr(module.NativeLibrary, "is_built", lambda self: False)
        return module

    monkeypatch.setattr(hook, "load_module", load)


def test_without_a_compiler_the_wheel_is_pure(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unbuilt(hook, monkeypatch)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    data, warnings = initialize(hook)
    assert data == {"artifacts": []}  # hatchling's own tag then is py3-none-any
    assert len(warnings) == 1 and "no C++ compiler found" in warnings[0]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("/nonexistent", "there is no program '/nonexistent'"),
        ("ccache-that-is-not-there g++", "no program 'ccache-that-is-not-there'"),
        ("g++ 'open", "not a command"),
        ("false", "failed"),
    ],
)
def test_a_compiler_that_is_named_and_does_not_work_is_an_error(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, wish: str, message: str
) -> None:
    unbuilt(hook, monkeypatch)
    monkeypatch.setenv("CXX", wish)
    with pytest.raises(RuntimeError, match=message) as caught:
        initialize(hook)
    assert wish in str(caught.value) and "SOFTPRUNE_PURE=1" in str(caught.value)


def test_a_compiler_of_several_words(hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = hook.load_module(ROOT / hook.COMPILATION)
    (real,) = module.compiler() or pytest.skip("no C++ compiler")
    log = tmp_path / "log"
    wrapper = tmp_path / "a wrapper"
    wrapper.write_text(f'#!/bin/sh\necho called >> "{log}"\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{wrapper}' {real} -DNOTHING")
    assert module.compiler() == [str(wrapper), real, "-DNOTHING"]
    (tmp_path / "unit.cpp").write_text("int answer() { return 42; }\n")
    monkeypatch.setattr(module, "X86", {})
    library = module.NativeLibrary(tmp_path / "unit.so", tmp_path, ("unit",))
    assert library.build().is_file()
    assert log.read_text() == "called\n" * 2  # compiled and linked


def test_no_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hook: ModuleType) -> None:
    module = hook.load_module(ROOT / hook.COMPILATION)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.compiler() is None
    with pytest.raises(RuntimeError, match=r"g\+\+ or clang\+\+"):
        module.ENGINE.build(tmp_path / "kernels.so")
    assert not list(tmp_path.iterdir())


def test_pure_by_wish_and_source_archives(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "load_module", lambda path: pytest.fail("nothing is to be compiled"))
    assert initialize(hook, "sdist") == ({"artifacts": []}, [])
    monkeypatch.setenv("SOFTPRUNE_PURE", "1")
    assert initialize(hook) == ({"artifacts": []}, [])


def test_the_processor_that_is_built_for(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = hook.load_module(ROOT / hook.COMPILATION)
    monkeypatch.setenv("ARCHFLAGS", "-arch arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert module.machine() == "arm64" and "avx2" not in module.ENGINE.flags_of_units()
    monkeypatch.setenv("ARCHFLAGS", "-arch x86_64")
    assert module.machine() == "x86_64" and "avx2" in module.ENGINE.flags_of_units()
    monkeypatch.setenv("ARCHFLAGS", "-arch x86_64 -arch arm64")
    with pytest.raises(RuntimeError, match="one at a time"):
        module.machine()
    monkeypatch.setattr(sys, "platform", "linux")
    assert module.arch_flags() == []
