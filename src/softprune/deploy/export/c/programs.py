"""Header and source of a C program, in float32 or in integers: templates that are filled in."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.c.float_network import FloatNetwork, Matrix, Normaliser
from softprune.deploy.export.c.integer_network import (
    CURVE_BITS,
    LIMIT16,
    RELU_LIMIT,
    SUM_LIMIT,
    TABLE,
    TABLE_BITS,
    TABLE_END,
    TABLE_STEP_BITS,
    IntegerMatrix,
    IntegerNetwork,
    Product,
    curve_bits,
)
from softprune.ops.recurrence import Curve

# Numbers, arrays and names as C source, the same text on every machine.

_WIDTH = 120
_TEMPLATES = Path(__file__).with_name("templates")
_BYTES = {"float": 4, "int": 4, "int8_t": 1, "int16_t": 2, "int32_t": 4}

# What C99 keeps apart in external names is 31 characters, and the longest suffix has 9.
LONGEST = 20
_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while"
)


def check_identifier(name: str) -> str:
    """The name, if every function and file can begin with it; else a ValueError.

    >>> check_identifier("har2")
    'har2'
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or _KEYWORD.fullmatch(name):
        raise ValueError(
            f"the name {name!r} is not a C identifier: take letters, digits and _, a letter first, and no C keyword"
        )
    if len(name) > LONGEST:
        raise ValueError(f"the name {name!r} has {len(name)} characters: take {LONGEST} at most")
    return name


def float_literal(value: float) -> str:
    """A float32 that reads back exactly.

    >>> float_literal(1.0), float_literal(-1e-7), float_literal(0.1)
    ('1.0f', '-1.00000001e-07f', '0.100000001f')
    """
    text = f"{float(np.float32(value)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


class CArray(NamedTuple):
    """A constant array: its name in C, its values row after row, the type of one of them."""

    name: str
    values: NDArray[Any]
    c_type: str = "float"

    @property
    def bytes(self) -> int:
        return self.values.size * _BYTES[self.c_type]

    @property
    def definition(self) -> str:
        flat = self.values.reshape(-1)
        numbers = ", ".join(float_literal(v) if self.c_type == "float" else str(int(v)) for v in flat)
        body = textwrap.fill(numbers, _WIDTH, initial_indent="    ", subsequent_indent="    ")
        return f"static const {self.c_type} {self.name}[{flat.size}] = {{\n{body}\n}};\n"


def definitions(arrays: Sequence[CArray]) -> str:
    return "\n".join(array.definition for array in arrays)


def filled(template: str, values: Mapping[str, object]) -> str:
    """A template of this package with its @marks@ replaced, as often as a replacement has marks itself."""
    text = _read(template)
    while marks := set(re.findall(r"@(\w+)@", text)):
        for mark in marks:
            text = text.replace(f"@{mark}@", str(values[mark]))
    return text


@cache
def _read(template: str) -> str:
    return (_TEMPLATES / template).read_text(encoding="ascii")


class _StateMember(NamedTuple):
    """A part of the state; ``size`` is that of an array as C text, empty for one number."""

    name: str
    c_type: str
    about: str
    size: str = ""
    numbers: int = 1

    @property
    def declaration(self) -> str:
        size = f"[{self.size}]" if self.size else ""
        return f"    {self.c_type} {self.name}{size}; /* {self.about} */"


@dataclass(frozen=True)
class CSource:
    """Header and source, the bytes of all constant arrays, and of a state: all memory but for a short stack."""

    header: str
    source: str
    constant_bytes: int
    state_bytes: int


# What programs in float32 and in integers have in common.


@dataclass(frozen=True)
class _Program:
    """The sizes of a program and the memory between its parts."""

    name: str  # what all names in C begin with
    network: FloatNetwork  # that is written
    steps: int  # of a window
    normaliser: Normaliser | None  # of the inputs
    kind: str  # "float" or "integer", as templates are called
    number: str  # the type in C of an activation

    @property
    def by_step(self) -> bool:
        """Whether the program must know which sample of the window it sees."""
        return self.normaliser is not None and len(self.normaliser.mean) > 1

    def members(self) -> list[_StateMember]:
        """Of the state; in-place updates need the state before, or what the thin factor of U makes of it."""
        network, number, upper = self.network, self.number, self.name.upper()
        found = [_StateMember("h", number, "the state of the recurrence", f"{upper}_HIDDEN", network.hidden)]
        if self.kind == "integer" or self.normaliser is not None:
            found.append(_StateMember("x", number, "the sample, normalised", f"{upper}_FEATURES", network.features))
        for name, matrix in (("W", network.w), ("U", network.u)):
            if matrix.down is not None:
                rank, about = len(matrix.down), f"between the factors of {name}"
                found.append(_StateMember(f"{name.lower()}_inner", number, about, str(rank), rank))
        if network.u.down is None:
            found.append(_StateMember("before", number, "h before the sample", f"{upper}_HIDDEN", network.hidden))
        if self.by_step:
            found.append(_StateMember("step", "int", "samples so far"))
        return found

    def normalising(self) -> list[CArray]:
        if self.normaliser is None:
            return []
        return [CArray("mean", self.normaliser.mean), CArray("inverse", self.normaliser.inverse)]

    def normalised(self) -> tuple[str, str]:
        """Lines that find the numbers of the sample, and the sample's value i as C text."""
        if self.normaliser is None:
            return "", "x[i]"
        at = " + (long)state->step * @NAME@_FEATURES" if self.by_step else ""
        return f"    const float *shift = mean{at}, *factor = inverse{at};\n", "(x[i] - shift[i]) * factor[i]"

    def prepared(self, x: str, product: Callable[[str, str], str]) -> tuple[str, str]:
        """Lines before the loop over the state, and what W's rows are multiplied with.

        ``x`` is the sample as C text; ``product`` gives the lines that multiply with the thin factor of a matrix, by
        its name and what it multiplies.
        """
        w, u = self.network.w, self.network.u
        lines = "" if w.down is None else product("w", x)
        if u.down is not None:
            lines += product("u", "state->h")
        else:  # the state is updated in place
            lines += "    for (i = 0; i < @NAME@_HIDDEN; i++) {\n        state->before[i] = state->h[i];\n    }\n"
        return lines, x if w.down is None else "state->w_inner"

    def written(self, numbers: str, arrays: Sequence[CArray], curves: Mapping[Curve, str], **own: object) -> CSource:
        """Fill in the templates; ``numbers`` says what the program computes in, ``own`` are marks of its kind alone."""
        network, members = self.network, self.members()
        factored = network.w.down is not None or network.u.down is not None
        marks: dict[str, object] = {
            "ABOUT": f"FastGRNN in {numbers}: {network.features} features, {self.steps} steps, {network.hidden} hidden "
            f"units, {network.classes} classes,\n * {_rank('W', network.w)}, {_rank('U', network.u)}, "
            f"gate {network.gate}, update {network.update}. Written by softprune.",
            "name": self.name,
            "NAME": self.name.upper(),
            "FEATURES": network.features,
            "STEPS": self.steps,
            "HIDDEN": network.hidden,
            "CLASSES": network.classes,
            "ARRAYS": definitions(arrays),
            "STATE": "\n".join(member.declaration for member in members),
            "INPUT": "normalised as the network was trained" if self.normaliser is None else "as the sensor gives it",
            "RESET": self.by_step * "    state->step = 0;\n",
            "COUNT": "    if (state->step < @NAME@_STEPS - 1) {\n        state->step++;\n    }\n"
            if self.by_step
            else "",
            "PRODUCT": filled(f"{self.kind}_product.c", {}) + "\n" if factored else "",
            "GATE": curves[network.gate],
            "UPDATE": curves[network.update],
            "W_COLUMNS": network.w.up.shape[1],
            "U_COLUMNS": network.u.up.shape[1],
            "U_INPUT": "state->before" if network.u.down is None else "state->u_inner",
            **dict.fromkeys(("MORE", "TYPES", "UNITS", "WHOLE"), ""),
            **own,
        }
        marks["COMMON"] = filled("common.c", marks).rstrip()
        widest = max(_BYTES[member.c_type] for member in members)
        state = sum(member.numbers * _BYTES[member.c_type] for member in members)
        return CSource(
            filled("header.h", marks),
            filled(f"{self.kind}.c", marks),
            sum(array.bytes for array in arrays),
            -(-state // widest) * widest,
        )


def _rank(name: str, matrix: Matrix) -> str:
    return f"{name} whole" if matrix.down is None else f"{name} of rank {len(matrix.down)}"


def _is_curved(network: FloatNetwork) -> bool:
    return bool({network.gate, network.update} & {"sigmoid", "tanh"})


# The program in float32.

_FLOAT_CURVES: dict[Curve, str] = {
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "relu": "x < 0.0f ? 0.0f : x",
    "quant_tanh": "x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x",
    "quant_sigm": "x < -1.0f ? 0.0f : x > 1.0f ? 1.0f : (x + 1.0f) / 2.0f",
    "quant_sigm4": "x < -2.0f ? 0.0f : x > 2.0f ? 1.0f : (x + 2.0f) / 4.0f",
}


def float_program(network: FloatNetwork, name: str, *, steps: int, normaliser: Normaliser | None) -> CSource:
    """Header and source in float32, with ``name`` in front of all names, for windows of so many steps."""
    program = _Program(name, network, steps, normaliser, "float", "float")
    arrays = [
        *(CArray("w_inner_rows", down) for down in [network.w.down] if down is not None),
        CArray("w_rows", network.w.up),
        *(CArray("u_inner_rows", down) for down in [network.u.down] if down is not None),
        CArray("u_rows", network.u.up),
        *(CArray(part, getattr(network, part)) for part in ("gate_bias", "update_bias", "head", "head_bias")),
        *program.normalising(),
    ]

    def product(matrix: str, x: str) -> str:
        rank = getattr(network, matrix).up.shape[1]
        columns = "@NAME@_FEATURES" if matrix == "w" else "@NAME@_HIDDEN"
        return f"    product({matrix}_inner_rows, {x}, {rank}, {columns}, state->{matrix}_inner);\n"

    found, value = program.normalised()
    if normaliser is not None:
        found += f"\n    for (i = 0; i < @NAME@_FEATURES; i++) {{\n        state->x[i] = {value};\n    }}\n"
    lines, w_input = program.prepared("x" if normaliser is None else "state->x", product)
    return program.written(
        "float32",
        arrays,
        _FLOAT_CURVES,
        INCLUDES=("#include <math.h>\n\n" if _is_curved(network) else "") + f'#include "{name}.h"',
        ZETA=float_literal(network.zeta),
        NU=float_literal(network.nu),
        PREPARE=found + lines,
        W_INPUT=w_input,
        SCORE="float",
    )


# The program in integers: int8 weights, int16 activations, int32 sums.

_ONE = 1 << CURVE_BITS
_HALF = 1 << (TABLE_BITS - 1)
_INTEGER_CURVES: dict[Curve, str] = {
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
    """Header and source of a network in integers, whose sizes it has in float32 too, for windows of so many steps."""
    program = _Program(name, network, steps, integers.normaliser, "integer", "int16_t")
    curved = _is_curved(network)
    arrays = [
        *_rows("w", integers.w),
        *_rows("u", integers.u),
        CArray("gate_bias", integers.gate_bias, _bias_type(integers.gate_bias)),
        CArray("update_bias", integers.update_bias, _bias_type(integers.update_bias)),
        CArray("head", integers.head, "int8_t"),
        CArray("head_bias", integers.head_bias, "int32_t"),
        # A half less, which makes it fit into 16 bits.
        *([CArray("table", TABLE - _HALF, "int16_t")] if curved else []),
        *program.normalising(),
    ]

    def product(matrix: str, x: str) -> str:
        down = getattr(integers, matrix).down
        assert down.limit == LIMIT16
        sizes = ", ".join(map(str, (*down.weights.shape, down.multiplier, down.shift)))
        return f"    product({matrix}_inner_rows, {x}, {sizes}, state->{matrix}_inner);\n"

    found, value = program.normalised()
    unused = "" if program.by_step else "    (void)state;\n"
    lines, w_input = program.prepared("x", product)
    kept, new, down = integers.mixing
    own: dict[str, object] = {
        "INCLUDES": f'#include "{name}.h"',
        "SIGMOID": filled("integer_sigmoid.c", _TABLE_MARKS) + "\n" if curved else "",
        "INPUT_BITS": integers.input_bits,
        "INPUT_HALVES": float_literal(float(2 << integers.input_bits)),
        "NORMALISED": "as the network takes it" if integers.normaliser is None else "normalised",
        "SCORE_SCALE": float_literal(integers.score_scale),
        "QUANTISE": f"{found}    int i;\n\n{unused}    for (i = 0; i < @NAME@_FEATURES; i++) {{\n"
        f"        out[i] = whole({value});\n    }}\n",
        "ZETA": integers.zeta,
        "NU": integers.nu,
        "PREPARE": lines,
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
        **{part.upper(): _read(f"integer_{part}.h") for part in ("more", "units", "whole")},
    }
    return program.written("integers (int8 weights, int16 activations, int32 sums)", arrays, _INTEGER_CURVES, **own)


def _bias_type(values: NDArray[Any]) -> str:
    """The smaller of two types of C that holds these whole numbers."""
    return "int16_t" if max(int(values.max()), -1 - int(values.min())) < 1 << 15 else "int32_t"


def _rows(name: str, matrix: IntegerMatrix) -> list[CArray]:
    inner = [] if matrix.down is None else [CArray(f"{name}_inner_rows", matrix.down.weights, "int8_t")]
    return [*inner, CArray(f"{name}_rows", matrix.up.weights, "int8_t")]


def _sum(rows: str, x: str, product: Product) -> str:
    columns = product.weights.shape[1]
    return f"rescaled(dot({rows}, {x}, {columns}), {product.multiplier}, {product.shift}, @SUM_LIMIT@)"
