"""The algorithms, each a small file, all behind one interface."""

from softprune.methods.base import Context, Method, Target
from softprune.methods.registry import from_config, method_names, register, to_config
from softprune.methods.soft_threshold import STR
from softprune.methods.support import KeepZeros

__all__ = ["STR", "Context", "KeepZeros", "Method", "Target", "from_config", "method_names", "register", "to_config"]
