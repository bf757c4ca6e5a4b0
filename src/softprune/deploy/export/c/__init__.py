"""A FastGRNN classifier as C99 source that needs no library, in float32 or in integers."""

from softprune.deploy.export.c.compiled import CompiledC, compile_c
from softprune.deploy.export.c.writing import CFiles, export_c

__all__ = ["CFiles", "CompiledC", "compile_c", "export_c"]
