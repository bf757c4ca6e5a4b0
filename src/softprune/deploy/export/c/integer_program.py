"""The program in integers: int8 weights, int16 activations, int32 sums."""

from __future__ import annotations

from softprune.deploy.export.c.fixed_point import (
    CURVE_BITS,
    LIMIT16,
    RELU_LIMIT,
    SUM_LIMIT,
    TABLE,
    TABLE_BITS,
    TABLE_END,
    TABLE_STEP_BITS,
    curve_bits,
)
from softprune.deploy.export.c.frame import Frame, keep_before
from softprune.deploy.export.c.integer_network import IntegerMatrix, IntegerNetwork, Product
from softprune.deploy.export.c.literal import float_literal, integer_type
from softprune.deploy.export.c.network import Network
from softprune.deploy.export.c.program import Constant, Program, arrays, filled
from softprune.ops.recurrence import Curve

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


def integer_program(network: Network, integers: IntegerNetwork, name: str, *, steps: int) -> Program:
    """Header and source in integers.

    Args:
        network: in float32, for the sizes.
        integers: the same in integers.
        name: what all names begin with.
        steps: of a window.
    """
    frame = Frame(name, network, steps, integers.normalisation, "int16_t")
    curved = bool({network.gate, network.update} & {"sigmoid", "tanh"})
    constants = _constants(integers, frame, curved=curved)
    members = frame.members(keeps_input=True)
    w_input = "x" if integers.w.down is None else "state->w_inner"
    factored = integers.w.down is not None or integers.u.down is not None
    kept, new, down = integers.mixing
    marks = {
        **frame.marks(members),
        "ABOUT": frame.about("integers (int8 weights, int16 activations, int32 sums)"),
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
        "QUANTISE": _quantise(frame),
        "ZETA": integers.zeta,
        "NU": integers.nu,
        "PREPARE": _prepare(frame, integers),
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
    return Program(filled("header.h", marks), filled("integer.c", marks), constants, members)


def _constants(integers: IntegerNetwork, frame: Frame, *, curved: bool) -> list[Constant]:
    found = [*_rows("w", integers.w), *_rows("u", integers.u)]
    for name, bias in (("gate_bias", integers.gate_bias), ("update_bias", integers.update_bias)):
        found.append(Constant(name, bias, max(integer_type(bias), "int16_t", key=_width)))
    found += [Constant("head", integers.head, "int8_t"), Constant("head_bias", integers.head_bias, "int32_t")]
    if curved:
        # A half less, which makes it fit into 16 bits.
        found.append(Constant("table", TABLE - _HALF, "int16_t"))
    return found + frame.normalising()


def _width(c_type: str) -> int:
    return int(c_type[3:-2])


def _rows(name: str, matrix: IntegerMatrix) -> list[Constant]:
    inner = [] if matrix.down is None else [Constant(f"{name}_inner_rows", matrix.down.weights, "int8_t")]
    return [*inner, Constant(f"{name}_rows", matrix.up.weights, "int8_t")]


def _sum(rows: str, x: str, product: Product) -> str:
    columns = product.weights.shape[1]
    return f"rescaled(dot({rows}, {x}, {columns}), {product.multiplier}, {product.shift}, @SUM_LIMIT@)"


def _quantise(frame: Frame) -> str:
    found, value = frame.normalised()
    unused = "" if frame.by_step else "    (void)state;\n"
    return (
        f"{found}    int i;\n\n{unused}    for (i = 0; i < @NAME@_FEATURES; i++) {{\n"
        f"        out[i] = whole({value});\n    }}\n"
    )


def _prepare(frame: Frame, integers: IntegerNetwork) -> str:
    lines = "" if integers.w.down is None else _product_call("w", "x", integers.w.down)
    if integers.u.down is None:
        return lines + keep_before(frame)
    return lines + _product_call("u", "state->h", integers.u.down)


def _product_call(name: str, x: str, product: Product) -> str:
    assert product.limit == LIMIT16
    rows, columns = product.weights.shape
    return (
        f"    product({name}_inner_rows, {x}, {rows}, {columns}, {product.multiplier}, {product.shift}, "
        f"state->{name}_inner);\n"
    )
