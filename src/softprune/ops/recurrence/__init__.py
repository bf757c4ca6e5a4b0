"""Recurrences over whole sequences: the plain loop, and one fused operator where there is a compiled one."""

from softprune.ops.recurrence.curve import CURVES, Curve
from softprune.ops.recurrence.fastgrnn import fastgrnn
from softprune.ops.recurrence.loop import fastgrnn_loop, fastgrnn_step

__all__ = ["CURVES", "Curve", "fastgrnn", "fastgrnn_loop", "fastgrnn_step"]
