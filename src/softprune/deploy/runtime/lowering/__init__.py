"""Lowering: from operations of the graph to calls of kernels, one file per family."""
