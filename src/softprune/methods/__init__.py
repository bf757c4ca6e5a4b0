"""The algorithms, each a small file, all behind one interface."""

from softprune.methods.acdc import ACDC
from softprune.methods.autosparse import AutoSparse
from softprune.methods.base import Context, GoalSettings, Method, Total, from_config, method_names, register, to_config
from softprune.methods.dnw import DNW
from softprune.methods.dpf import DPF
from softprune.methods.dsr import DSR
from softprune.methods.feather import Feather
from softprune.methods.gmp import GMP
from softprune.methods.imp import IMP
from softprune.methods.rigl import RigL
from softprune.methods.slats import SLATS
from softprune.methods.snfs import SNFS
from softprune.methods.snip import SNIP
from softprune.methods.soft_threshold import STR
from softprune.methods.sparse_evolution import SET
from softprune.methods.st3 import ST3
from softprune.methods.static import KeepZeros, Static
from softprune.methods.transforms import Target
from softprune.methods.vd import VD

__all__ = [
    "ACDC",
    "DNW",
    "DPF",
    "DSR",
    "GMP",
    "IMP",
    "SET",
    "SLATS",
    "SNFS",
    "SNIP",
    "ST3",
    "STR",
    "VD",
    "AutoSparse",
    "Context",
    "Feather",
    "GoalSettings",
    "KeepZeros",
    "Method",
    "RigL",
    "Static",
    "Target",
    "Total",
    "from_config",
    "method_names",
    "register",
    "to_config",
]
