"""A classifier in integers (int8 weights, int16 activations, int32 sums): in NumPy, measured from floats, and in C."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softprune.deploy.export.c.fixed_point import (
    CURVE_BITS,
    LIMIT16,
    MIX_BITS,
    RELU_LIMIT,
    SUM_BITS,
    SUM_LIMIT,
    TABLE,
    TABLE_BITS,
    TABLE_END,
    TABLE_STEP_BITS,
    Integers,
    clamped,
    curve,
    curve_bits,
    fraction_bits,
    multiplier,
    quantised_inputs,
    rounded,
)
from softprune.deploy.export.c.float_network import FloatNetwork, Matrix, Normalisation, read_network
from softprune.deploy.export.c.text import (
    CLayout,
    Constant,
    CSource,
    arrays,
    filled,
    float_literal,
    integer_type,
    keep_before,
)
from softprune.nn import FastGRNNClassifier
from softprune.ops.recurrence import Curve


@dataclass(frozen=True)
class Product:
    """A matrix of int8 and what makes its sums numbers of another scale.

    Attributes:
        weights: [out, in], -127 to 127.
        multiplier: of 31 bits.
        shift: right, after the multiplication.
        limit: the largest result.
    """

    weights: Integers
    multiplier: int
    shift: int
    limit: int

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return clamped(rounded(x @ self.weights.T * self.multiplier, self.shift), self.limit)


@dataclass(frozen=True)
class IntegerMatrix:
    """What `Matrix` is, in integers.

    Attributes:
        up: gives sums with SUM_BITS.
        down: gives int16; None if the matrix is whole.
    """

    up: Product
    down: Product | None = None

    def __call__(self, x: Integers) -> Integers:
        """Rows [n, in] to [n, out]."""
        return self.up(x if self.down is None else self.down(x))


@dataclass(frozen=True)
class IntegerNetwork:
    """A classifier in integers.

    Attributes:
        w: from the inputs to the state.
        u: from the state to the state.
        gate_bias: with SUM_BITS.
        update_bias: likewise.
        zeta: with MIX_BITS.
        nu: likewise.
        gate: non-linearity of the gate.
        update: non-linearity of the update.
        head: int8, [classes, hidden].
        head_bias: in units of the scores.
        score_scale: what one unit of a score is.
        input_bits: bits behind the binary point of the inputs.
        state_bits: likewise of the state.
        normalisation: of the inputs, in float32.
    """

    w: IntegerMatrix
    u: IntegerMatrix
    gate_bias: Integers
    update_bias: Integers
    zeta: int
    nu: int
    gate: Curve
    update: Curve
    head: Integers
    head_bias: Integers
    score_scale: float
    input_bits: int
    state_bits: int
    normalisation: Normalisation | None

    def quantise(self, windows: NDArray[np.float32]) -> Integers:
        """Windows [n, steps, features] as the program is given them, to int16."""
        values = windows if self.normalisation is None else self.normalisation(windows)
        return quantised_inputs(values, self.input_bits)

    def step(self, x: Integers, h: Integers) -> Integers:
        """The state after inputs [n, features], from the state before, [n, hidden]."""
        both = self.w(x) + self.u(h)
        z = curve(self.gate, clamped(both + self.gate_bias, SUM_LIMIT))
        c = curve(self.update, clamped(both + self.update_bias, SUM_LIMIT))
        kept, new, down = self.mixing
        mix = rounded(self.zeta * ((1 << curve_bits(self.gate)) - z), curve_bits(self.gate)) + self.nu
        return clamped(rounded(z * h * (1 << kept) + mix * c * (1 << new), down), LIMIT16)

    @property
    def mixing(self) -> tuple[int, int, int]:
        """Shifts left of z h and of the new part to the same bits, and right to those of the state."""
        kept = curve_bits(self.gate) + self.state_bits
        new = MIX_BITS + curve_bits(self.update)
        most = max(kept, new)
        return most - kept, most - new, most - self.state_bits

    def scores(self, windows: NDArray[np.float32]) -> NDArray[np.int32]:
        """Scores [n, classes] of windows [n, steps, features], bit for bit those of the C program.

        >>> import torch
        >>> from softprune.nn import FastGRNNClassifier
        >>> from softprune.deploy.export.c.float_network import plain_classifier
        >>> from softprune.deploy.export.c.integer_network import quantised
        >>> network = quantised(plain_classifier(FastGRNNClassifier(2, 3, classes=4)), torch.ones(1, 5, 2))
        >>> network.scores(np.ones((1, 5, 2), np.float32)).shape
        (1, 4)
        """
        inputs = self.quantise(windows)
        h: Integers = np.zeros((len(windows), len(self.gate_bias)), np.int64)
        for step in range(inputs.shape[1]):
            h = self.step(inputs[:, step], h)
        return (h @ self.head.T + self.head_bias).astype(np.int32)


# From a classifier in float32 to one in integers, with ranges measured on example windows.

Doubles = NDArray[np.float64]

LARGEST_WEIGHT = 127
# A sum of products with int16 stays below 2 ** 30, which leaves as much again for a bias.
LARGEST_ROW = 32_000
LARGEST_BIAS = 1 << 30


@dataclass(frozen=True)
class _Scaled:
    """Whole numbers that stand for ``scale`` times themselves."""

    weights: Integers
    scale: float


def quantised(
    model: FastGRNNClassifier, example: Tensor, *, normalisation: Normalisation | None = None
) -> IntegerNetwork:
    """The classifier in integers.

    Args:
        model: from `plain_classifier`.
        example: windows [n, steps, features] as the model takes them. Each kind of activation gets 16 bits for twice
            its largest value in them; what is larger than that later is cut there.
        normalisation: what the integer program does to its inputs.

    Raises:
        ValueError: if a value is too large for 16 bits.
    """
    network = read_network(model)
    with torch.no_grad():
        states = model.rnn(example)[0].double().numpy()
    x = example.double().numpy()
    input_bits = fraction_bits(float(np.abs(x).max()), "an input")
    state_bits = fraction_bits(float(np.abs(states).max()), "the state")
    head_bias = network.head_bias.astype(np.float64)
    # One unit of a score must not be so small that the bias has no room.
    least = float(np.abs(head_bias).max()) * 2.0**state_bits / LARGEST_BIAS
    head = _scaled(network.head.astype(np.float64), least=least)
    score_scale = head.scale * 2.0**-state_bits
    return IntegerNetwork(
        w=_matrix(network.w, x, input_bits, "W x"),
        u=_matrix(network.u, states, state_bits, "U h"),
        gate_bias=_bias(network.gate_bias),
        update_bias=_bias(network.update_bias),
        zeta=round(network.zeta * (1 << MIX_BITS)),
        nu=round(network.nu * (1 << MIX_BITS)),
        gate=network.gate,
        update=network.update,
        head=head.weights,
        head_bias=np.rint(head_bias / score_scale).astype(np.int64),
        score_scale=score_scale,
        input_bits=input_bits,
        state_bits=state_bits,
        normalisation=normalisation,
    )


def _matrix(matrix: Matrix, inputs: Doubles, bits: int, what: str) -> IntegerMatrix:
    up = matrix.up.astype(np.float64)
    if matrix.down is None:
        return IntegerMatrix(_product(_scaled(up), bits, SUM_BITS, SUM_LIMIT))
    up, down = _balanced(up, matrix.down.astype(np.float64))
    inner_bits = fraction_bits(float(np.abs(inputs @ down.T).max()), f"{what}, between its factors,")
    return IntegerMatrix(
        _product(_scaled(up), inner_bits, SUM_BITS, SUM_LIMIT), _product(_scaled(down), bits, inner_bits, LIMIT16)
    )


def _balanced(up: Doubles, down: Doubles) -> tuple[Doubles, Doubles]:
    """The same product with each direction equally large in both factors: one scale suits all directions better."""
    sizes = np.abs(up).max(0), np.abs(down).max(1)
    alive = (sizes[0] > 0) & (sizes[1] > 0)
    root = np.sqrt(np.where(alive, sizes[1], 1.0) / np.where(alive, sizes[0], 1.0))
    return up * root * alive, down / root[:, None] * alive[:, None]


def _scaled(weights: Doubles, *, least: float = 0.0) -> _Scaled:
    rows = np.abs(weights).sum(1).max()
    scale = max(
        float(np.abs(weights).max()) / LARGEST_WEIGHT, float(rows) / (LARGEST_ROW - weights.shape[1] / 2), least
    )
    scale = scale or 1.0
    return _Scaled(np.rint(weights / scale).astype(np.int64), scale)


def _product(matrix: _Scaled, bits: int, out_bits: int, limit: int) -> Product:
    return Product(matrix.weights, *multiplier(matrix.scale * 2.0 ** (out_bits - bits)), limit)


def _bias(bias: NDArray[np.float32]) -> Integers:
    return clamped(np.rint(bias.astype(np.float64) * (1 << SUM_BITS)).astype(np.int64), SUM_LIMIT)


# The program in integers: int8 weights, int16 activations, int32 sums.

_ONE = 1 << CURVE_BITS
_HALF = 1 << (TABLE_BITS - 1)
_CURVES: dict[Curve, str] = {
    "sigmoid": "(sigmoid(x) + 1) >> 1",
    "tanh": f"sigmoid(2 * x) - {_ONE}",
    "relu": f"clamped(x, 0, {RELU_LIMIT})",
    "quant_tanh": f"clamped(4 * x, -{_ONE}, {_ONE})",
    "quant_sigm": f"clamped(2 * x + {_ONE // 2}, 0, {_ONE})",
    "quant_sigm4": f"clamped(x + {_ONE // 2}, 0, {_ONE})",
}
_TABLE_MARKS = {
    "TABLE_LAST": TABLE_END - 1,
    "TABLE_STEP_BITS": TABLE_STEP_BITS,
    "TABLE_HALF": _HALF,
    "TABLE_ONE": 2 * _HALF,
    "TABLE_REST": (1 << TABLE_STEP_BITS) - 1,
    "TABLE_ROUND": 1 << (TABLE_STEP_BITS - 1),
}


def integer_program(network: FloatNetwork, integers: IntegerNetwork, name: str, *, steps: int) -> CSource:
    """Header and source in integers.

    Args:
        network: in float32, for the sizes.
        integers: the same in integers.
        name: what all names begin with.
        steps: of a window.
    """
    layout = CLayout(name, network, steps, integers.normalisation, "int16_t")
    curved = bool({network.gate, network.update} & {"sigmoid", "tanh"})
    constants = _constants(integers, layout, curved=curved)
    members = layout.members(keeps_input=True)
    w_input = "x" if integers.w.down is None else "state->w_inner"
    factored = integers.w.down is not None or integers.u.down is not None
    kept, new, down = integers.mixing
    marks = {
        **layout.marks(members),
        "ABOUT": layout.about("integers (int8 weights, int16 activations, int32 sums)"),
        "INCLUDES": f'#include "{name}.h"',
        "ARRAYS": arrays(constants),
        "PRODUCT": filled("integer_product.c", {}) + "\n" if factored else "",
        "SIGMOID": filled("integer_sigmoid.c", _TABLE_MARKS) + "\n" if curved else "",
        "GATE": _CURVES[network.gate],
        "UPDATE": _CURVES[network.update],
        "INPUT_BITS": integers.input_bits,
        "INPUT_HALVES": float_literal(float(2 << integers.input_bits)),
        "NORMALISED": "normalised" if integers.normalisation is not None else "as the network takes it",
        "SCORE_SCALE": float_literal(integers.score_scale),
        "QUANTISE": _quantise(layout),
        "ZETA": integers.zeta,
        "NU": integers.nu,
        "PREPARE": _prepare(layout, integers),
        "W_SUM": _sum("w", w_input, integers.w.up),
        "U_SUM": _sum("u", "@U_INPUT@", integers.u.up),
        "SUM_LIMIT": SUM_LIMIT,
        "GATE_ONE": 1 << curve_bits(network.gate),
        "GATE_BITS": curve_bits(network.gate),
        "KEPT": 1 << kept,
        "NEW": 1 << new,
        "DOWN": down,
        "SCORE": "int32_t",
        "TYPES": "#include <stdint.h>\n\n",
    }
    marks |= {part.upper(): filled(f"integer_{part}.h", marks) for part in ("more", "units", "whole")}
    marks["COMMON"] = filled("common.c", marks).rstrip()
    return CSource(filled("header.h", marks), filled("integer.c", marks), constants, members)


def _constants(integers: IntegerNetwork, layout: CLayout, *, curved: bool) -> list[Constant]:
    found = [*_rows("w", integers.w), *_rows("u", integers.u)]
    for name, bias in (("gate_bias", integers.gate_bias), ("update_bias", integers.update_bias)):
        found.append(Constant(name, bias, max(integer_type(bias), "int16_t", key=_width)))
    found += [Constant("head", integers.head, "int8_t"), Constant("head_bias", integers.head_bias, "int32_t")]
    if curved:
        # A half less, which makes it fit into 16 bits.
        found.append(Constant("table", TABLE - _HALF, "int16_t"))
    return found + layout.normalising()


def _width(c_type: str) -> int:
    return int(c_type[3:-2])


def _rows(name: str, matrix: IntegerMatrix) -> list[Constant]:
    inner = [] if matrix.down is None else [Constant(f"{name}_inner_rows", matrix.down.weights, "int8_t")]
    return [*inner, Constant(f"{name}_rows", matrix.up.weights, "int8_t")]


def _sum(rows: str, x: str, product: Product) -> str:
    columns = product.weights.shape[1]
    return f"rescaled(dot({rows}, {x}, {columns}), {product.multiplier}, {product.shift}, @SUM_LIMIT@)"


def _quantise(layout: CLayout) -> str:
    found, value = layout.normalised()
    unused = "" if layout.by_step else "    (void)state;\n"
    return (
        f"{found}    int i;\n\n{unused}    for (i = 0; i < @NAME@_FEATURES; i++) {{\n"
        f"        out[i] = whole({value});\n    }}\n"
    )


def _prepare(layout: CLayout, integers: IntegerNetwork) -> str:
    lines = "" if integers.w.down is None else _product_call("w", "x", integers.w.down)
    if integers.u.down is None:
        return lines + keep_before(layout)
    return lines + _product_call("u", "state->h", integers.u.down)


def _product_call(name: str, x: str, product: Product) -> str:
    assert product.limit == LIMIT16
    rows, columns = product.weights.shape
    return (
        f"    product({name}_inner_rows, {x}, {rows}, {columns}, {product.multiplier}, {product.shift}, "
        f"state->{name}_inner);\n"
    )
