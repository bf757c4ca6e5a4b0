"""The program in float32."""

from __future__ import annotations

from softprune.deploy.export.c.frame import Frame, keep_before
from softprune.deploy.export.c.literal import float_literal
from softprune.deploy.export.c.network import Network
from softprune.deploy.export.c.normalisation import Normalisation
from softprune.deploy.export.c.program import Constant, Program, arrays, filled
from softprune.ops.recurrence import Curve

_CURVES: dict[Curve, str] = {
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "relu": "x < 0.0f ? 0.0f : x",
    "quant_tanh": "x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x",
    "quant_sigm": "x < -1.0f ? 0.0f : x > 1.0f ? 1.0f : (x + 1.0f) / 2.0f",
    "quant_sigm4": "x < -2.0f ? 0.0f : x > 2.0f ? 1.0f : (x + 2.0f) / 4.0f",
}


def float_program(network: Network, name: str, *, steps: int, normalisation: Normalisation | None) -> Program:
    """Header and source in float32.

    Args:
        network: its numbers.
        name: what all names begin with.
        steps: of a window.
        normalisation: what is done to the inputs.
    """
    frame = Frame(name, network, steps, normalisation, "float")
    constants = _constants(network, frame)
    members = frame.members(keeps_input=normalisation is not None)
    prepare, w_input = _prepare(frame)
    factored = network.w.down is not None or network.u.down is not None
    marks = {
        **frame.marks(members),
        "ABOUT": frame.about("float32"),
        "INCLUDES": _includes(network, name),
        "ARRAYS": arrays(constants),
        "PRODUCT": filled("float_product.c", {}) + "\n" if factored else "",
        "GATE": _CURVES[network.gate],
        "UPDATE": _CURVES[network.update],
        "ZETA": float_literal(network.zeta),
        "NU": float_literal(network.nu),
        "PREPARE": prepare,
        "W_INPUT": w_input,
        "SCORE": "float",
        **dict.fromkeys(("MORE", "TYPES", "UNITS", "WHOLE"), ""),
    }
    marks["COMMON"] = filled("common.c", marks).rstrip()
    return Program(filled("header.h", marks), filled("float.c", marks), constants, members)


def _includes(network: Network, name: str) -> str:
    needs_math = {network.gate, network.update} & {"sigmoid", "tanh"}
    return ("#include <math.h>\n\n" if needs_math else "") + f'#include "{name}.h"'


def _constants(network: Network, frame: Frame) -> list[Constant]:
    w, u = network.w, network.u
    return [
        *([Constant("w_inner_rows", w.down)] if w.down is not None else []),
        Constant("w_rows", w.up),
        *([Constant("u_inner_rows", u.down)] if u.down is not None else []),
        Constant("u_rows", u.up),
        Constant("gate_bias", network.gate_bias),
        Constant("update_bias", network.update_bias),
        Constant("head", network.head),
        Constant("head_bias", network.head_bias),
        *frame.normalising(),
    ]


def _prepare(frame: Frame) -> tuple[str, str]:
    """Lines before the loop over the state, and what W's rows are multiplied with."""
    network, upper = frame.network, frame.name.upper()
    lines, x = "", "x"
    if frame.normalisation is not None:
        found, value = frame.normalised()
        loop = f"    for (i = 0; i < {upper}_FEATURES; i++) {{\n        state->x[i] = {value};\n    }}\n"
        lines, x = found + "\n" + loop, "state->x"
    if network.w.down is not None:
        lines += f"    product(w_inner_rows, {x}, {len(network.w.down)}, {upper}_FEATURES, state->w_inner);\n"
        x = "state->w_inner"
    if network.u.down is None:
        return lines + keep_before(frame), x
    return lines + f"    product(u_inner_rows, state->h, {len(network.u.down)}, {upper}_HIDDEN, state->u_inner);\n", x
