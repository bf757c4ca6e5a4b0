"""The algorithms, each a small file, all behind one interface."""

from softprune.methods.base import Context, Method, Pursuit, Target
from softprune.methods.gmp import GMP
from softprune.methods.registry import from_config, method_names, register, to_config
from softprune.methods.soft_threshold import STR
from softprune.methods.st3 import ST3
from softprune.methods.support import KeepZeros

__all__ = [
    "GMP",
    "ST3",
    "STR",
    "Context",
    "KeepZeros",
    "Method",
    "Pursuit",
    "Target",
    "from_config",
    "method_names",
    "register",
    "to_config",
]
