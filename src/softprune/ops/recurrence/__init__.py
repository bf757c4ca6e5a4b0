"""Recurrences over whole sequences: the plain loop, and one fused operator where there is a compiled one."""

from softprune.ops.recurrence.fastgrnn import CURVES, Curve, fastgrnn, fastgrnn_loop, fastgrnn_step

__all__ = ["CURVES", "Curve", "fastgrnn", "fastgrnn_loop", "fastgrnn_step"]
