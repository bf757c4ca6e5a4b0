"""Numbers and arrays as C source, the same text on every machine."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
