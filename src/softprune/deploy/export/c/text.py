"""A C program as text: numbers, names, the members of a state, templates that are filled in; and the one in float32."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.c.float_network import FloatNetwork, Matrix, Normalisation
from softprune.ops.recurrence import Curve

# Numbers and arrays as C source, the same text on every machine.

_WIDTH = 120


def float_literal(value: float) -> str:
    """A float32 that reads back exactly.

    >>> float_literal(1.0), float_literal(-1e-7), float_literal(0.1)
    ('1.0f', '-1.00000001e-07f', '0.100000001f')
    """
    text = f"{float(np.float32(value)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def integer_type(values: NDArray[Any]) -> str:
    """The smallest signed type of C that holds these whole numbers."""
    largest = max(int(values.max()), -1 - int(values.min()))
    return next(f"int{bits}_t" for bits in (8, 16, 32, 64) if largest < 1 << (bits - 1))


def type_bytes(c_type: str) -> int:
    """Bytes of a number.

    >>> type_bytes("float"), type_bytes("int16_t")
    (4, 2)
    """
    return {"float": 4, "int": 4, "int8_t": 1, "int16_t": 2, "int32_t": 4}[c_type]


def array_literal(name: str, values: NDArray[Any], c_type: str) -> str:
    """The definition of a constant array, row after row."""
    flat = values.reshape(-1)
    numbers = ", ".join(float_literal(v) if c_type == "float" else str(int(v)) for v in flat)
    body = textwrap.fill(numbers, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"static const {c_type} {name}[{flat.size}] = {{\n{body}\n}};\n"


_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Constant:
    """An array that does not change.

    Attributes:
        name: in C.
        values: row after row.
        c_type: of one of them.
    """

    name: str
    values: NDArray[Any]
    c_type: str = "float"

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self.values.size * type_bytes(self.c_type)


@dataclass(frozen=True)
class Member:
    """A part of the state.

    Attributes:
        name: in C.
        c_type: of one number.
        about: what it is.
        size: of an array, as C text; empty for one number.
        count: how many numbers.
    """

    name: str
    c_type: str
    about: str
    size: str = ""
    count: int = 1

    @property
    def declaration(self) -> str:
        """Its line of C."""
        size = f"[{self.size}]" if self.size else ""
        return f"    {self.c_type} {self.name}{size}; /* {self.about} */"


@dataclass(frozen=True)
class CSource:
    """The text of header and source.

    Attributes:
        header: content of the header.
        source: content of the source.
        constants: in the source.
        members: of the state.
    """

    header: str
    source: str
    constants: Sequence[Constant]
    members: Sequence[Member]

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constant arrays."""
        return sum(constant.bytes for constant in self.constants)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, the whole working memory but for a short stack."""
        total = sum(member.count * type_bytes(member.c_type) for member in self.members)
        widest = max(type_bytes(member.c_type) for member in self.members)
        return -(-total // widest) * widest


def arrays(constants: Sequence[Constant]) -> str:
    """Their definitions."""
    return "\n".join(array_literal(c.name, c.values, c.c_type) for c in constants)


def filled(template: str, values: Mapping[str, object]) -> str:
    """A template of this package with its @marks@ replaced, as often as a replacement has marks itself.

    Raises:
        KeyError: if a mark has no value.
    """
    text = _read(template)
    while marks := set(re.findall(r"@(\w+)@", text)):
        for mark in marks:
            text = text.replace(f"@{mark}@", str(values[mark]))
    return text


@cache
def _read(template: str) -> str:
    return (_TEMPLATES / template).read_text(encoding="ascii")


# What programs in float32 and in integers have in common.


@dataclass(frozen=True)
class CLayout:
    """The sizes of a program and the memory between its parts.

    Attributes:
        name: what all names in C begin with.
        network: that is written.
        steps: of a window.
        normalisation: of the inputs.
        number: the type in C of an activation.
    """

    name: str
    network: FloatNetwork
    steps: int
    normalisation: Normalisation | None
    number: str

    @property
    def by_step(self) -> bool:
        """Whether the program must know which sample of the window it sees."""
        return self.normalisation is not None and self.normalisation.by_step

    def members(self, *, keeps_input: bool) -> list[Member]:
        """Of the state; in-place updates need the state before, or what the thin factor of U makes of it."""
        network, number, upper = self.network, self.number, self.name.upper()
        found = [Member("h", number, "the state of the recurrence", f"{upper}_HIDDEN", network.hidden)]
        if keeps_input:
            found.append(Member("x", number, "the sample, normalised", f"{upper}_FEATURES", network.features))
        if network.w.down is not None:
            rank = len(network.w.down)
            found.append(Member("w_inner", number, "between the factors of W", str(rank), rank))
        if network.u.down is not None:
            rank = len(network.u.down)
            found.append(Member("u_inner", number, "between the factors of U", str(rank), rank))
        else:
            found.append(Member("before", number, "h before the sample", f"{upper}_HIDDEN", network.hidden))
        if self.by_step:
            found.append(Member("step", "int", "samples so far"))
        return found

    def normalising(self) -> list[Constant]:
        """The constants of the normalisation."""
        if self.normalisation is None:
            return []
        return [Constant("mean", self.normalisation.mean), Constant("inverse", self.normalisation.inverse)]

    def marks(self, members: list[Member]) -> dict[str, object]:
        """For the templates."""
        network, upper = self.network, self.name.upper()
        return {
            "name": self.name,
            "NAME": upper,
            "FEATURES": network.features,
            "STEPS": self.steps,
            "HIDDEN": network.hidden,
            "CLASSES": network.classes,
            "STATE": "\n".join(member.declaration for member in members),
            "INPUT": "as the sensor gives it"
            if self.normalisation is not None
            else "normalised as the network was trained",
            "RESET": "    state->step = 0;\n" if self.by_step else "",
            "COUNT": f"    if (state->step < {upper}_STEPS - 1) {{\n        state->step++;\n    }}\n"
            if self.by_step
            else "",
            "W_COLUMNS": network.w.up.shape[1],
            "U_COLUMNS": network.u.up.shape[1],
            "U_INPUT": "state->before" if network.u.down is None else "state->u_inner",
        }

    def normalised(self) -> tuple[str, str]:
        """Lines that find the numbers of the sample, and the sample's value i as C text."""
        if self.normalisation is None:
            return "", "x[i]"
        at = f" + (long)state->step * {self.name.upper()}_FEATURES" if self.by_step else ""
        return (
            f"    const float *shift = mean{at}, *factor = inverse{at};\n",
            "(x[i] - shift[i]) * factor[i]",
        )

    def about(self, kind: str) -> str:
        """One line on what the program is."""
        network = self.network
        return (
            f"FastGRNN in {kind}: {network.features} features, {self.steps} steps, {network.hidden} hidden units, "
            f"{network.classes} classes,\n * {_rank('W', network.w)}, {_rank('U', network.u)}, gate {network.gate}, "
            f"update {network.update}. Written by softprune."
        )


def keep_before(layout: CLayout) -> str:
    """Lines that keep the state, which is then updated in place."""
    return (
        f"    for (i = 0; i < {layout.name.upper()}_HIDDEN; i++) {{\n        state->before[i] = state->h[i];\n    }}\n"
    )


def _rank(name: str, matrix: Matrix) -> str:
    return f"{name} whole" if matrix.down is None else f"{name} of rank {len(matrix.down)}"


# Names that C takes.

# What C99 keeps apart in external names is 31 characters, and the longest suffix has 9.
LONGEST = 20
_KEYWORD = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while"
)


def check_identifier(name: str) -> str:
    """The name, if every function and file can begin with it.

    Raises:
        ValueError: if it is no C identifier, or too long.

    >>> check_identifier("har2")
    'har2'
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or _KEYWORD.fullmatch(name):
        raise ValueError(
            f"the name {name!r} is no C identifier: take letters, digits and _, a letter first, and no keyword of C"
        )
    if len(name) > LONGEST:
        raise ValueError(f"the name {name!r} has {len(name)} characters: take {LONGEST} at most")
    return name


# The program in float32.

_CURVES: dict[Curve, str] = {
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "relu": "x < 0.0f ? 0.0f : x",
    "quant_tanh": "x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x",
    "quant_sigm": "x < -1.0f ? 0.0f : x > 1.0f ? 1.0f : (x + 1.0f) / 2.0f",
    "quant_sigm4": "x < -2.0f ? 0.0f : x > 2.0f ? 1.0f : (x + 2.0f) / 4.0f",
}


def float_program(network: FloatNetwork, name: str, *, steps: int, normalisation: Normalisation | None) -> CSource:
    """Header and source in float32.

    Args:
        network: its numbers.
        name: what all names begin with.
        steps: of a window.
        normalisation: what is done to the inputs.
    """
    layout = CLayout(name, network, steps, normalisation, "float")
    constants = _constants(network, layout)
    members = layout.members(keeps_input=normalisation is not None)
    prepare, w_input = _prepare(layout)
    factored = network.w.down is not None or network.u.down is not None
    marks = {
        **layout.marks(members),
        "ABOUT": layout.about("float32"),
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
    return CSource(filled("header.h", marks), filled("float.c", marks), constants, members)


def _includes(network: FloatNetwork, name: str) -> str:
    needs_math = {network.gate, network.update} & {"sigmoid", "tanh"}
    return ("#include <math.h>\n\n" if needs_math else "") + f'#include "{name}.h"'


def _constants(network: FloatNetwork, layout: CLayout) -> list[Constant]:
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
        *layout.normalising(),
    ]


def _prepare(layout: CLayout) -> tuple[str, str]:
    """Lines before the loop over the state, and what W's rows are multiplied with."""
    network, upper = layout.network, layout.name.upper()
    lines, x = "", "x"
    if layout.normalisation is not None:
        found, value = layout.normalised()
        loop = f"    for (i = 0; i < {upper}_FEATURES; i++) {{\n        state->x[i] = {value};\n    }}\n"
        lines, x = found + "\n" + loop, "state->x"
    if network.w.down is not None:
        lines += f"    product(w_inner_rows, {x}, {len(network.w.down)}, {upper}_FEATURES, state->w_inner);\n"
        x = "state->w_inner"
    if network.u.down is None:
        return lines + keep_before(layout), x
    return lines + f"    product(u_inner_rows, state->h, {len(network.u.down)}, {upper}_HIDDEN, state->u_inner);\n", x
