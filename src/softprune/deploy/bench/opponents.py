"""Which engines a network is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

# Engine -> packages it needs.
NEEDS = {"onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino"), "torch": ("torch",)}


def opponents(wanted: Sequence[str] | None, *, module: bool) -> list[str]:
    """The engines that take part beside ours.

    Args:
        wanted: names of engines; None takes all that can be used.
        module: whether there is a module that PyTorch could run.

    Returns:
        Their names, each once.

    Raises:
        ValueError: for an unknown name, or torch without a module.
        ImportError: if an engine that was asked for is not installed.
    """
    if wanted is None:
        return [name for name in NEEDS if not missing(name) and (module or name != "torch")]
    unknown = [name for name in wanted if name not in NEEDS]
    if unknown:
        raise ValueError(f"there is no engine {unknown[0]!r} to compare with: choose from {', '.join(NEEDS)}")
    for name in wanted:
        if name == "torch" and not module:
            raise ValueError(
                "torch needs the module, which a .spx file does not hold: leave torch out, or name a network of the "
                "zoo, such as zoo:resnet50/str-90.23"
            )
        if absent := missing(name):
            raise ImportError(f"{name} needs {' and '.join(absent)}: pip install 'softprune[bench]'")
    return list(dict.fromkeys(wanted))


def missing(name: str) -> list[str]:
    """The packages that an engine needs and that are not installed."""
    return [package for package in NEEDS[name] if find_spec(package) is None]
