"""Lowering: how each operation of the format becomes calls of kernels."""

from __future__ import annotations

from collections.abc import Callable

from softprune.deploy.engine.builder import Builder
from softprune.deploy.engine.lowering import elementwise, layers, reduction
from softprune.deploy.format.graph import Op

# Operation of the format -> appends its steps to the program.
LOWERING: dict[str, Callable[[Builder, Op], None]] = {
    "conv2d": layers.lower_conv2d,
    "conv_transpose2d": layers.lower_conv_transpose,
    "linear": layers.lower_linear,
    "matmul": layers.lower_matmul,
    "attention": layers.lower_attention,
    "max_pool2d": reduction.lower_pool,
    "avg_pool2d": reduction.lower_pool,
    "adaptive_avg_pool2d": reduction.lower_adaptive,
    "resize": reduction.lower_resize,
    "mean": reduction.lower_mean,
    "softmax": reduction.lower_softmax,
    "layer_norm": reduction.lower_layer_norm,
    "add": elementwise.lower_binary,
    "mul": elementwise.lower_binary,
    "scale_shift": elementwise.lower_scale_shift,
    "concat": elementwise.lower_concat,
    "reshape": elementwise.lower_reshape,
    "permute": elementwise.lower_permute,
    "slice": elementwise.lower_slice,
    "pad": elementwise.lower_pad,
    "constant": elementwise.lower_constant,
    "identity": elementwise.lower_identity,
    **dict.fromkeys(
        ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish", "elu", "softplus", "gelu"),
        elementwise.lower_activation,
    ),
}
