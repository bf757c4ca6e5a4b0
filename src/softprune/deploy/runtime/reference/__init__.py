"""Every operation of the format in NumPy: simple, right, and the measure of the compiled kernels."""

from softprune.deploy.runtime.reference.interpreter import run

__all__ = ["run"]
